//! The host and the guest, and several tunnels between them at once.

use crate::engines::Engines;
use crate::guest;
use crate::slot::{SLOTS, Slot};
use crate::support::config::{Config, Sa, Tunnel};
use crate::support::gateway::Gateway;
use crate::support::wait::PATIENCE;
use crate::support::{Outcome, ensure, folder};
use crate::traffic::ECHO_PORT;
use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;
use testudo_judge::interop::{Mode, Protocol, Row};
use testudo_judge::linux_peer::LinuxPeer;
use testudo_lab::namespaces::{Namespace, enter, is_inside};

/// The interface towards the guest.
pub const TAP: &str = "tap0";
/// How long a batch of `ip` may take in an emulated guest, which loads and tests each cipher when it is first
/// used.
const CONFIGURED: Duration = Duration::from_secs(60);

/// Dropped in this order.
pub struct Site {
    pub peer: LinuxPeer,
    pub host: Namespace,
    lots: u32,
    rows: u32,
}

/// Boots the guest.
pub fn boot() -> Result<Site, Box<dyn Error>> {
    let cache = LinuxPeer::default_cache();
    if !is_inside() {
        // While there is still a network.
        LinuxPeer::prepare_image(&cache)?;
    }
    let host = Namespace::new(enter()?, "host")?;
    host.tap(TAP)?;
    for interface in ["all", TAP] {
        // Loose, as the gateway advises for transport mode: the route to a peer leads into the tunnel.
        host.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "2")?;
    }
    for slot in (0..SLOTS).map(Slot) {
        host.address(TAP, &format!("{}/24", slot.outer(false).0))?;
        host.run(&["ip", "address", "add", &format!("{}/64", slot.outer(true).0), "dev", TAP, "nodad"])?;
    }
    let mut peer = LinuxPeer::boot(&host, TAP, &cache)?;
    peer.run(&guest::ip_batch(&guest::addresses()))?;
    // RFC 3948: a UDP socket that accepts ESP (level UDP, option UDP_ENCAP, value UDP_ENCAP_ESPINUDP).
    for version in ["UDP4-RECV:4500", "UDP6-RECV:4500,ipv6only=1"] {
        let _ = peer.background(&format!("exec socat -u {version},setsockopt-listen=17:100:i2 /dev/null"))?;
    }
    let _ =
        peer.background(&format!("exec socat -t 30 TCP6-LISTEN:{ECHO_PORT},reuseaddr,fork EXEC:/bin/cat"))?;
    let _ = peer.background(&format!("exec socat -b 65536 UDP6-RECVFROM:{ECHO_PORT},fork PIPE"))?;
    peer.wait_until(
        &format!("ss -Hltn | grep -q :{ECHO_PORT} && ss -Hlun | grep -q :{ECHO_PORT}"),
        PATIENCE,
    )?;
    peer.wait_until("test $(ss -Haun | grep -c :4500) -ge 2", PATIENCE)?;
    Ok(Site { peer, host, lots: 0, rows: 0 })
}

/// Rows that stand side by side, both ends configured.
pub struct Lot {
    pub gateway: Gateway,
    /// What the guest said to a row that it cannot have.
    pub refused: Vec<(Row, String)>,
    /// The others, with the names of their tunnels.
    pub standing: Vec<(Row, Slot, String)>,
    engines: Engines,
    /// What Testudo had dropped, and `/proc/net/xfrm_stat`, the last time.
    dropped: BTreeMap<String, u64>,
    statistics: String,
}

/// What ends have besides their tunnels.
pub struct Ends {
    /// Our engines.
    pub engines: Engines,
    /// Lines of our `[gateway]`.
    pub gateway: String,
    /// The guest's replay window, in packets.
    pub replay_window: u32,
}

impl Default for Ends {
    /// A large window: while AES instructions are busy, Linux defers single packets and handles them
    /// hundreds of packets later.
    fn default() -> Self {
        Self { engines: Engines::Usual, gateway: String::new(), replay_window: 4096 }
    }
}

impl Site {
    /// Name and version of the guest's kernel.
    pub fn peer_name(&mut self) -> Outcome<String> {
        Ok(format!("Linux {}", self.peer.run("uname -r")?.trim()))
    }

    /// Configures both ends of rows alike, at most [`SLOTS`] of them, except for what `spoil` changes at
    /// ours, which has these engines.
    pub fn connect(&mut self, rows: &[Row], engines: Engines, spoil: impl Fn(&mut Tunnel)) -> Outcome<Lot> {
        self.connect_as(&Ends { engines, ..Ends::default() }, rows, spoil)
    }

    /// The same with ends that are not as usual.
    pub fn connect_as(&mut self, ends: &Ends, rows: &[Row], spoil: impl Fn(&mut Tunnel)) -> Outcome<Lot> {
        self.lots += 1;
        let folder = folder(&format!("lot-{}", self.lots))?;
        let mut standing = Vec::new();
        let mut refused = Vec::new();
        let config = Config { gateway: ends.gateway.clone(), ..Config::default() };
        let mut config = ends.engines.configure(config);
        let mut script = guest::ip_batch(&guest::fresh());
        let mut wanted = Vec::new();
        for (row, slot) in rows.iter().zip((0..SLOTS).map(Slot)) {
            let tunnel = self.tunnel(row, slot)?;
            match guest::states_and_policies(row, slot, &tunnel, ends.replay_window) {
                None => refused.push((*row, "Linux does not have this algorithm".to_owned())),
                Some(batch) => {
                    script += &format!("echo row {}\n{}", slot.0, guest::ip_batch(&batch));
                    wanted.push((*row, slot, tunnel));
                }
            }
        }
        let said = self.peer.sh(&script, CONFIGURED)?.stdout;
        ensure(said.is_empty() || said.starts_with("row "), || format!("the guest's policies: {said}"))?;
        for (row, slot, mut tunnel) in wanted {
            if let Some(complaint) = complaint(&said, slot) {
                refused.push((row, format!("`ip xfrm state add` answers {complaint:?}")));
                continue;
            }
            if row.mode == Mode::Tunnel {
                config.addresses.push(format!("{}/32", slot.inner(false).0));
                config.addresses.push(format!("{}/128", slot.inner(true).0));
            } else {
                // Its route to the peer would lead sealed packets back into the tunnel.
                config.unprotected = format!("interface = \"{TAP}\"");
            }
            standing.push((row, slot, tunnel.name.clone()));
            spoil(&mut tunnel);
            config.tunnels.push(tunnel);
        }
        config.write(&folder)?;
        let statistics = self.statistics()?;
        let gateway = Gateway::init_and_start(&self.host, &folder)?;
        let engines = ends.engines;
        Ok(Lot { gateway, refused, standing, engines, dropped: BTreeMap::new(), statistics })
    }

    /// Our end of a row. Each has its own SPIs and keys, so that leftovers of another cannot be mistaken for
    /// it.
    fn tunnel(&mut self, row: &Row, slot: Slot) -> Outcome<Tunnel> {
        self.rows += 1;
        let spi = 0x1000 + 4 * self.rows;
        let (local, remote) = slot.outer(row.ipv6);
        let selectors = places(row, slot);
        let protocol = if row.protocol == Protocol::EspInUdp { "esp" } else { row.protocol.name() };
        let mut more = format!("protocol = \"{protocol}\"\nmode = \"{}\"\n", row.mode.name());
        let covered_by = match row.ah {
            Some(suite) => Some([Sa::of(spi + 2, suite)?, Sa::of(spi + 3, suite)?]),
            None => None,
        };
        let name = |suites: &str| suites.split('+').map(str::to_owned).collect::<Vec<_>>();
        let suites = name(&row.suites());
        if let Some(ah) = suites.get(1) {
            more += &format!("ah_suite = \"{ah}\"\n");
        }
        // The suite of ESP brings its own confirmations.
        if row.is_legacy() && (row.protocol == Protocol::Ah || !row.suite.is_legacy()) {
            more += "allow_legacy = true\n";
        }
        Ok(Tunnel {
            name: format!("row-{}", self.rows),
            local,
            remote,
            suite: suites.first().cloned().unwrap_or_default(),
            udp: row.protocol == Protocol::EspInUdp,
            vpe: false,
            esn: row.esn,
            selectors,
            outbound: Sa::of(spi, row.suite)?,
            inbound: Sa::of(spi + 1, row.suite)?,
            covered_by,
            own: Vec::new(),
            more,
        })
    }

    pub fn statistics(&mut self) -> Outcome<String> {
        Ok(self.peer.run("cat /proc/net/xfrm_stat")?)
    }
}

/// The pairs of addresses that a row's packets are between, ours first.
///
/// Linux compares a packet that has come through several SAs with the selector of each, and a selector of an
/// SA in transport mode has the IP version of its addresses: through AH over ESP in tunnel mode only packets
/// of the version outside reach it (`XfrmInStateMismatch`).
pub fn places(row: &Row, slot: Slot) -> Vec<(String, String)> {
    match (row.mode, row.protocol) {
        (Mode::Transport, _) => vec![slot.outer(row.ipv6)],
        (Mode::Tunnel, Protocol::AhAndEsp) => vec![slot.inner(row.ipv6)],
        (Mode::Tunnel, _) => vec![slot.inner(false), slot.inner(true)],
    }
}

/// What `ip` said about a slot, if anything.
fn complaint(said: &str, slot: Slot) -> Option<String> {
    let mut lines = said.lines().skip_while(|line| *line != format!("row {}", slot.0)).skip(1);
    lines.next().filter(|line| !line.starts_with("row ")).map(str::to_owned)
}

impl Lot {
    /// Expects that the SAs of a tunnel have carried packets, that none of theirs was dropped, and that Linux
    /// counted no error since the last time.
    pub fn books(&mut self, site: &mut Site, tunnel: &str) -> Outcome<()> {
        for sa in self.sas(tunnel)? {
            let is_idle = sa["packets"].as_u64().is_none_or(|packets| packets == 0);
            let drops = sa["drops"].as_object().map_or(0, serde_json::Map::len);
            ensure(!is_idle && drops == 0, || {
                format!(
                    "the {} SA of {} carried {} packets and dropped {}",
                    sa["direction"], sa["protocol"], sa["packets"], sa["drops"]
                )
            })?;
        }
        let drops = self.drops()?;
        ensure(drops.is_empty(), || format!("Testudo dropped {drops:?}"))?;
        let changes = self.errors_of_linux(site)?;
        ensure(changes.is_empty(), || format!("Linux counted {changes}"))
    }

    /// The SAs of a tunnel, those of AH around ESP among them.
    fn sas(&self, tunnel: &str) -> Outcome<Vec<Value>> {
        let list = self.gateway.ask_json(&["sa", "list"])?;
        let of_ah = format!("{tunnel}/ah");
        let is_ours = |sa: &&Value| sa["tunnel"] == tunnel || sa["tunnel"] == of_ah.as_str();
        Ok(list.as_array().into_iter().flatten().filter(is_ours).cloned().collect())
    }

    /// Packets that the GPU was given so far, which must be in service; `None` if the gateway has no GPU.
    pub fn given_to_the_gpu(&self) -> Outcome<Option<u64>> {
        let Engines::Gpu { .. } = self.engines else { return Ok(None) };
        let status = self.gateway.ask_json(&["status"])?;
        let gpu = status["engines"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "gpu"));
        let gpu = gpu.ok_or("there is no engine gpu")?;
        // A device that has failed is told of in the log alone: it still takes jobs, and ends them as faults.
        let is_whole =
            gpu["in_use"].as_bool() == Some(true) && !self.gateway.log().contains("out of service");
        ensure(is_whole, || format!("the GPU does not work: {gpu:#}\n{}", self.gateway.log()))?;
        Ok(Some(gpu["scheduler"]["packets"].as_u64().unwrap_or(0)))
    }

    /// How many packets each SA of a tunnel has carried, for people.
    pub fn packets(&self, tunnel: &str) -> Outcome<String> {
        let said = self.sas(tunnel)?.into_iter().map(|sa| {
            let text = |field: &str| sa[field].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", text("protocol"), text("direction"), sa["packets"])
        });
        Ok(said.collect::<Vec<_>>().join(", "))
    }

    /// Packets that Testudo dropped since the last time, except those that the host itself sends on a new
    /// interface (router solicitations and the like).
    pub fn drops(&mut self) -> Outcome<Vec<(String, u64)>> {
        let status = self.gateway.ask_json(&["status"])?;
        let drops = status["drops"].as_object().into_iter().flatten();
        let count = |(reason, count): (&String, &Value)| Some((reason.clone(), count.as_u64()?));
        let now: BTreeMap<String, u64> = drops.filter_map(count).collect();
        let before = std::mem::replace(&mut self.dropped, now);
        let since = self
            .dropped
            .iter()
            .map(|(reason, count)| (reason.clone(), count - before.get(reason).copied().unwrap_or(0)));
        Ok(since.filter(|(reason, count)| reason != "no_policy" && *count > 0).collect())
    }

    /// What Linux counted in `/proc/net/xfrm_stat` since the last time.
    pub fn errors_of_linux(&mut self, site: &mut Site) -> Outcome<String> {
        let now = site.statistics()?;
        let pairs = now.lines().zip(self.statistics.lines());
        let changed: Vec<String> = pairs
            .filter(|(now, before)| now != before)
            .map(|(now, _)| now.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        self.statistics = now;
        Ok(changed.join(", "))
    }
}
