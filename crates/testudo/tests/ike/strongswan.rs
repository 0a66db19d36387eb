//! strongSwan's charon-systemd: its files are in a folder of the test, and it is spoken to through swanctl.

use crate::host::{Host, ticks_of};
use crate::support::{Outcome, ensure, wait};
use crate::vici::{self, Section};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const CHARON: &str = "/usr/sbin/charon-systemd";
const SWANCTL: &str = "/usr/sbin/swanctl";
/// Without a list, kernel-libipsec makes a TUN interface of its own and bypass-lan policies of its own.
pub const PLUGINS: &str = "random nonce openssl aes sha1 sha2 hmac kdf gcm chapoly pem pkcs1 pkcs8 x509 pubkey \
                       constraints revocation kernel-netlink socket-default vici updown";

/// A running charon. Dropping it kills it.
#[derive(Debug)]
pub struct Charon {
    child: Child,
    folder: PathBuf,
}

impl Charon {
    /// Starts it on a host, with further settings, and waits until it can be spoken to.
    pub fn start(host: &Host, settings: &str) -> Outcome<Self> {
        let settings = format!("install_routes = no\n routing_table = 0\n {settings}");
        Self::launch(host, &mut host.with_library(CHARON), PLUGINS, &settings)
    }

    /// Starts it on a host without a gateway, with strongSwan's own data path: its library libipsec seals and
    /// opens, behind a TUN interface of its own.
    pub fn with_own_data_path(host: &Host) -> Outcome<Self> {
        let plugins = PLUGINS.replace("kernel-netlink", "kernel-libipsec kernel-netlink");
        Self::launch(host, &mut host.namespace.command(CHARON), &plugins, "")
    }

    fn launch(host: &Host, command: &mut Command, plugins: &str, settings: &str) -> Outcome<Self> {
        let folder = host.folder.join("strongswan");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        for name in ["x509", "x509ca", "private"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let shown = folder.display();
        let configuration = format!(
            "charon-systemd {{\n load = {plugins}\n delete_rekeyed_delay = 1\n\
             plugins {{ vici {{ socket = unix://{shown}/vici }} }}\n\
             journal {{ default = -1 }}\n\
             filelog {{ log {{ path = {shown}/log\n default = 1\n knl = 2\n flush_line = yes }} }}\n\
             {settings}\n}}\n\
             swanctl {{ load = pem pkcs1 pkcs8 x509 openssl }}\npki {{ load = {PLUGINS} }}\n"
        );
        fs::write(folder.join("strongswan.conf"), configuration)?;
        let output = File::create(folder.join("output"))?;
        let child = command
            .env("STRONGSWAN_CONF", folder.join("strongswan.conf"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let mut charon = Self { child, folder };
        wait::until("for charon to answer", || {
            if let Some(status) = charon.child.try_wait()? {
                return Err(format!("charon ended: {status}\n{}", charon.log()).into());
            }
            Ok(charon.folder.join("vici").exists().then(|| charon.swanctl(&["--stats"]).ok()).flatten())
        })
        .map_err(|error| format!("{error}\n{}", charon.log()))?;
        Ok(charon)
    }

    /// A swanctl with these words; its output.
    pub fn swanctl(&self, words: &[&str]) -> Outcome<String> {
        let output = wait::output(
            Command::new(SWANCTL)
                .args(words)
                .arg("--uri")
                .arg(format!("unix://{}/vici", self.folder.display()))
                .env("STRONGSWAN_CONF", self.folder.join("strongswan.conf"))
                .env("SWANCTL_DIR", &self.folder),
        )?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || format!("swanctl {words:?}: {said}{complaint}\n{}", self.log()))?;
        Ok(said)
    }

    /// Puts connections and secrets in the place of those before.
    pub fn load(&self, configuration: &str) -> Outcome<()> {
        fs::write(self.folder.join("swanctl.conf"), configuration)?;
        self.swanctl(&["--load-all", "--noprompt"]).map(drop)
    }

    /// Where certificates and keys are looked for.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Its IKE_SAs.
    pub fn sas(&self) -> Outcome<Vec<IkeSa>> {
        let said = self.swanctl(&["--list-sas", "--raw"])?;
        let events = vici::events(&said, "list-sa event")?;
        Ok(events.into_iter().flat_map(|event| event.sections).map(|(_, all)| IkeSa { all }).collect())
    }

    /// Waits for something of its IKE_SAs.
    pub fn until<T>(&self, what: &str, mut is: impl FnMut(&[IkeSa]) -> Option<T>) -> Outcome<T> {
        wait::until(what, || Ok(is(&self.sas()?))).map_err(|error| self.with_log(&error))
    }

    fn with_log(&self, error: &dyn std::fmt::Display) -> Box<dyn std::error::Error> {
        format!("{error}\n{:?}\n{}", self.sas(), self.log()).into()
    }

    /// All of its log.
    pub fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        read("log") + &read("output")
    }

    /// Lines of its log in which the kernel interface complains.
    pub fn complaints(&self) -> Vec<String> {
        const WORDS: [&str; 6] =
            ["unable to", "received netlink error", "error ", "failed", "not found", "invalid"];
        let log = self.log();
        let of_kernel = log.lines().filter(|line| line.contains("[KNL]"));
        of_kernel.filter(|line| WORDS.iter().any(|word| line.contains(word))).map(str::to_owned).collect()
    }

    /// The time that its threads have run: [`ticks_of`].
    pub fn ticks(&self) -> Outcome<u64> {
        ticks_of(self.child.id())
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?).ok_or("no process")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills it: what it has negotiated stays.
    pub fn kill(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it as the service manager does: it deletes its SAs and policies, and tells its peers.
    pub fn stop(mut self) -> Outcome<String> {
        self.signal(Signal::TERM)?;
        let status = wait::ended(&mut self.child).map_err(|error| format!("{error}\n{}", self.log()))?;
        ensure(status.success(), || format!("charon: {status}\n{}", self.log()))?;
        Ok(self.log())
    }
}

impl Drop for Charon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An IKE_SA as swanctl shows it.
#[derive(Debug, Clone)]
pub struct IkeSa {
    pub all: Section,
}

impl IkeSa {
    pub fn id(&self) -> &str {
        self.all.get("uniqueid")
    }

    pub fn is_established(&self) -> bool {
        self.all.get("state") == "ESTABLISHED"
    }

    /// Its CHILD_SAs that carry traffic.
    pub fn installed(&self) -> Vec<&Section> {
        let children = self.all.sections.get("child-sas").into_iter().flat_map(|all| all.sections.values());
        children.filter(|child| child.get("state") == "INSTALLED").collect()
    }
}

/// The only CHILD_SA, if there is one and it carries traffic: its two SPIs, inbound first.
pub fn only_child(sas: &[IkeSa]) -> Option<[u32; 2]> {
    let [sa] = sas else { return None };
    let children = sa.installed();
    let [child] = children[..] else { return None };
    let all = sa.all.sections.get("child-sas")?.sections.len();
    let spi = |name| u32::from_str_radix(child.get(name), 16).ok();
    (sa.is_established() && all == 1).then(|| Some([spi("spi-in")?, spi("spi-out")?]))?
}
