//! Keys by two charons in place of key files: `testudo demo --ike`.
//!
//! ```text
//!   charon A ═══ IKE ═══ charon B
//!      │ XFRM               │ XFRM
//!   gateway A ── link ── gateway B
//! ```
//!
//! While packets flow, either end in turn has the CHILD_SA renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testudo_crypto::NonceRule;

use crate::charon::{Charon, Installed};
use crate::error::{LabError, io};
use crate::gateway::{Gateway, Inquiry, random_hex};
use crate::network::{Network, Site};
use crate::programs::POLL;
use crate::protection::{Protection, Protocols};
use crate::workspace::Workspace;

/// The name of IKE_SA and CHILD_SA.
const CONNECTION: &str = "sites";
/// Between the end of a rekey and the next one.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a rekey may take, with the end of the old SAs a second later.
const RENEWED_WITHIN: Duration = Duration::from_secs(20);
const BYTES_OF_SECRET: usize = 32;

/// Checks that charon can negotiate the tunnel that is asked for.
///
/// # Errors
/// It cannot; the error says why.
pub(super) fn check(protection: &Protection) -> Result<(), LabError> {
    let refused = |what: &str| Err(io("use these options")(std::io::Error::other(what.to_owned())));
    if protection.protocols != Protocols::Esp {
        return refused("--ike negotiates ESP: leave out --protocol");
    }
    let (suite, _) = protection.suites()?;
    if suite.nonce_rule() == NonceRule::Counter {
        return refused(&format!("--ike: charon negotiates no implicit IV, as {} has it", protection.suite));
    }
    Ok(())
}

/// Two charons whose IKE_SA and CHILD_SA are there.
#[derive(Debug)]
pub(super) struct Negotiation {
    charons: [Charon; 2],
    gateways: [Inquiry; 2],
    rekeys: AtomicU64,
}

impl Negotiation {
    /// Starts both charons beside their gateways, and negotiates.
    ///
    /// # Errors
    /// One does not start, or they come to no agreement.
    pub(super) fn start(
        network: &Network,
        gateways: &[Gateway; 2],
        installed: &Installed,
        protection: &Protection,
        workspace: &Workspace,
    ) -> Result<Self, LabError> {
        let secret = random_hex(BYTES_OF_SECRET)?;
        let start = |is_a: bool| {
            let (here, there) = if is_a { (&network.a, &network.b) } else { (&network.b, &network.a) };
            let (gateway, letter) = if is_a { (&gateways[0], "a") } else { (&gateways[1], "b") };
            let (name, folder) =
                (format!("charon {}", letter.to_uppercase()), workspace.join(format!("charon-{letter}")));
            let charon = Charon::start(&here.gateway, installed, &name, &folder, &gateway.daemon_socket())?;
            charon.load(&connection(here, there, is_a, protection, &secret)).map(|()| charon)
        };
        let charons = [start(true)?, start(false)?];
        charons[0].swanctl(&["--initiate", "--child", CONNECTION, "--timeout", "15"])?;
        let gateways = [0, 1].map(|at: usize| gateways[at].inquiry().clone());
        let negotiation = Self { charons, gateways, rekeys: AtomicU64::new(0) };
        negotiation.until_renewed(&[])?;
        Ok(negotiation)
    }

    /// Name and version of the daemon.
    pub(super) fn daemon(&self) -> Result<String, LabError> {
        self.charons[0].version()
    }

    /// How often the CHILD_SA has been renewed.
    pub(super) fn rekeys(&self) -> u64 {
        self.rekeys.load(Ordering::Relaxed)
    }

    /// Has one end renew the CHILD_SA, and waits until the old one is gone from both.
    fn rekey(&self, by: usize) -> Result<(), LabError> {
        let before: Vec<u32> = self.gateways[0].sas()?.into_iter().map(|sa| sa.spi).collect();
        self.charons[by].swanctl(&["--rekey", "--child", CONNECTION])?;
        self.until_renewed(&before)?;
        self.rekeys.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until both gateways have one SA in each direction, with other SPIs than `before`.
    fn until_renewed(&self, before: &[u32]) -> Result<(), LabError> {
        let deadline = Instant::now() + RENEWED_WITHIN;
        while Instant::now() < deadline {
            let [a, b] = [self.gateways[0].sas()?, self.gateways[1].sas()?];
            let is_done = [&a, &b].into_iter().all(|sas| {
                let outbound = sas.iter().filter(|sa| sa.direction == "outbound").count();
                sas.len() == 2 && outbound == 1 && !sas.iter().any(|sa| before.contains(&sa.spi))
            });
            if is_done {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        let what = "the charons did not negotiate one pair of SAs in the place of the old one".to_owned();
        Err(LabError::TooLate { what, limit: RENEWED_WITHIN })
    }

    /// Ends both charons.
    ///
    /// # Errors
    /// One has ended before, or ends with an error.
    pub(super) fn stop(self) -> Result<(), LabError> {
        self.charons.into_iter().try_for_each(Charon::stop)
    }
}

/// Rekeys by either end in turn, until `end` is called.
pub(super) struct Rekeying {
    stop: Sender<()>,
    thread: JoinHandle<Result<(), LabError>>,
}

impl Rekeying {
    pub(super) fn start(negotiation: Arc<Negotiation>) -> Self {
        let (stop, stopped) = channel();
        let work = move || {
            for by in [0, 1].into_iter().cycle() {
                negotiation.rekey(by)?;
                if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            Ok(())
        };
        Self { stop, thread: thread::spawn(work) }
    }

    /// Waits for the rekey that is under way.
    pub(super) fn end(self) -> Result<(), LabError> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// `swanctl.conf` of one end. Only the demonstration renews SAs.
fn connection(here: &Site, there: &Site, is_a: bool, protection: &Protection, secret: &str) -> String {
    let (own, other) = if is_a { ("a.example", "b.example") } else { ("b.example", "a.example") };
    let encap = if protection.udp_port().is_some() { "yes" } else { "no" };
    // In transport mode the selectors are the two hosts, which nobody has to say (RFC 7296 1.3.1).
    let selectors = match protection.in_transport {
        true => "mode = transport".to_owned(),
        false => format!("local_ts = {}\n        remote_ts = {}", here.network, there.network),
    };
    let (local, remote, suite) = (here.outer, there.outer, &protection.suite);
    format!(
        r#"connections {{
  {CONNECTION} {{
    version = 2
    local_addrs = {local}
    remote_addrs = {remote}
    proposals = aes128gcm16-prfsha256-x25519
    mobike = no
    encap = {encap}
    rekey_time = 0
    local {{
      auth = psk
      id = {own}
    }}
    remote {{
      auth = psk
      id = {other}
    }}
    children {{
      {CONNECTION} {{
        {selectors}
        esp_proposals = {suite}-x25519-esn
        rekey_time = 0
      }}
    }}
  }}
}}
secrets {{
  ike-{CONNECTION} {{
    id-a = a.example
    id-b = b.example
    secret = "{secret}"
  }}
}}
"#
    )
}
