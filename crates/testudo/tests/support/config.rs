//! Configuration and key files, as a user would write them.

use super::Outcome;
use super::sites::{OUTER, ROUTER};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use testudo_crypto::{NonceRule, Suite};

/// The name of the configuration in a gateway's folder.
pub const CONFIGURATION: &str = "testudo.toml";

/// The device of the engine on GPUs, by its name: PoCL, which is a processor and shows correctness alone.
const POCL: &str = "portable computing";

/// What begins `[gateway]`, and the sections behind it, of a gateway whose only fast engine is a GPU, with
/// further lines of `[engine.gpu]` and of `[scheduler]`. The bound is the widest, since PoCL takes its time.
pub fn gpu_lines(engine: &str, scheduler: &str) -> [String; 2] {
    let engine = format!("[engine.gpu]\ndevice = \"{POCL}\"\n{engine}");
    let scheduler = format!("[scheduler]\nlatency_us = 50000\n{scheduler}");
    ["engines = [\"gpu\", \"portable\"]\n".to_owned(), format!("\n{engine}\n{scheduler}")]
}

/// One SA: its number and its key in hex.
#[derive(Debug, Clone)]
pub struct Sa {
    pub spi: u32,
    pub key: String,
}

impl Sa {
    /// With a random key for `suite`.
    pub fn random(spi: u32, suite: &str) -> Outcome<Self> {
        Self::of(spi, suite.parse()?)
    }

    /// The same for a suite that has been read.
    pub fn of(spi: u32, suite: Suite) -> Outcome<Self> {
        let mut bytes = vec![0; suite.keying_material_bytes()];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let key = bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        Ok(Self { spi, key })
    }
}

/// `[[tunnel]]`
#[derive(Debug, Clone)]
pub struct Tunnel {
    pub name: String,
    pub local: String,
    pub remote: String,
    pub suite: String,
    /// Whether ESP goes in UDP.
    pub udp: bool,
    /// Whether it is VPE in the place of ESP.
    pub vpe: bool,
    pub esn: bool,
    /// (local, remote) each.
    pub selectors: Vec<(String, String)>,
    pub outbound: Sa,
    pub inbound: Sa,
    /// The SAs of AH around those of ESP (`protocol = "ah+esp"`), outbound and inbound.
    pub covered_by: Option<[Sa; 2]>,
    /// SAs of single workers, outbound and inbound, those that there are.
    pub own: Vec<(u32, [Option<Sa>; 2])>,
    /// Further lines.
    pub more: String,
}

impl Tunnel {
    /// The same tunnel from the other end.
    #[must_use]
    pub fn mirrored(&self) -> Self {
        Self {
            local: self.remote.clone(),
            remote: self.local.clone(),
            selectors: self.selectors.iter().map(|(l, r)| (r.clone(), l.clone())).collect(),
            outbound: self.inbound.clone(),
            inbound: self.outbound.clone(),
            covered_by: self.covered_by.clone().map(|[outbound, inbound]| [inbound, outbound]),
            own: self.own.iter().map(|(worker, [out, inb])| (*worker, [inb.clone(), out.clone()])).collect(),
            ..self.clone()
        }
    }

    fn text(&self) -> String {
        let Self { name, local, remote, suite, esn, more, .. } = self;
        let encapsulation = match (self.vpe, self.udp) {
            (true, true) => "vpe-in-udp",
            (true, false) => "vpe",
            (false, true) => "esp-in-udp",
            (false, false) => "esp",
        };
        // VPE has no others, and does not take the key.
        let esn_line = if self.vpe { String::new() } else { format!("esn = {esn}\n") };
        let selectors: Vec<_> = self
            .selectors
            .iter()
            .map(|(local, remote)| format!("{{ local = \"{local}\", remote = \"{remote}\" }}"))
            .collect();
        let confirmations = confirmations(suite);
        let sa = |sa: &Sa, at: usize| {
            let ah = self.covered_by.as_ref().map_or(String::new(), |ah| {
                format!(", ah_spi = {:#x}, ah_key_file = \"{:x}.key\"", ah[at].spi, ah[at].spi)
            });
            format!("{{ spi = {:#x}, key_file = \"{:x}.key\"{ah} }}", sa.spi, sa.spi)
        };
        let own: String = self
            .own
            .iter()
            .map(|(worker, sas)| {
                let line = |key: &str, own: &Option<Sa>| {
                    own.as_ref().map_or(String::new(), |own| format!("{key} = {}\n", sa(own, 0)))
                };
                let [outbound, inbound] = [line("outbound", &sas[0]), line("inbound", &sas[1])];
                format!("[[tunnel.worker_sas]]\nworker = {worker}\n{outbound}{inbound}")
            })
            .collect();
        format!(
            "\n[[tunnel]]\nname = \"{name}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nsuite = \"{suite}\"\n\
             encapsulation = \"{encapsulation}\"\n{esn_line}selectors = [ {} ]\noutbound = {}\ninbound = {}\n{confirmations}{more}\n{own}",
            selectors.join(", "),
            sa(&self.outbound, 0),
            sa(&self.inbound, 1),
        )
    }
}

/// The lines without which a configuration refuses a suite.
pub fn confirmations(suite: &str) -> &'static str {
    match suite.parse::<Suite>() {
        Ok(suite) if suite.is_legacy() => "allow_legacy = true\n",
        Ok(suite) if suite.nonce_rule() == NonceRule::Counter => "allow_manual_counter_nonce = true\n",
        _ => "",
    }
}

/// A whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Path of the durable store.
    pub state: String,
    /// Path of the control socket.
    pub control: String,
    /// Further lines of `[gateway]`.
    pub gateway: String,
    /// Name of the TUN interface.
    pub interface: String,
    /// Addresses of the TUN interface.
    pub addresses: Vec<String>,
    /// Further lines of `[port.protected]`.
    pub protected: String,
    /// Further lines of `[port.unprotected]`.
    pub unprotected: String,
    /// What begins the sections of the ports, the protected one first, in place of a TUN interface and
    /// sockets.
    pub kinds: [Option<String>; 2],
    /// `[[policy]]` tables.
    pub policies: String,
    pub tunnels: Vec<Tunnel>,
}

impl Default for Config {
    /// No tunnels yet, and everything in the configuration's own folder.
    fn default() -> Self {
        Self {
            state: "state.redb".to_owned(),
            control: "control.sock".to_owned(),
            gateway: String::new(),
            interface: "testudo0".to_owned(),
            addresses: Vec::new(),
            protected: String::new(),
            unprotected: String::new(),
            kinds: [None, None],
            policies: String::new(),
            tunnels: Vec::new(),
        }
    }
}

impl Config {
    /// The text of the configuration file.
    pub fn text(&self) -> String {
        let addresses: Vec<_> = self.addresses.iter().map(|address| format!("\"{address}\"")).collect();
        let tunnels: String = self.tunnels.iter().map(Tunnel::text).collect();
        let [protected, unprotected] = self.kinds.clone();
        let tun = || {
            let (name, addresses) = (&self.interface, addresses.join(", "));
            format!("kind = \"tun\"\nname = \"{name}\"\naddresses = [{addresses}]")
        };
        format!(
            "[gateway]\nstate = \"{}\"\ncontrol = \"{}\"\n{}\n\n[port.protected]\n{}\n{}\n\n\
             [port.unprotected]\n{}\n{}\n{}{tunnels}",
            self.state,
            self.control,
            self.gateway,
            protected.unwrap_or_else(tun),
            self.protected,
            unprotected.unwrap_or_else(|| "kind = \"socket\"".to_owned()),
            self.unprotected,
            self.policies,
        )
    }

    /// With a GPU for the only fast engine, and further lines of `[engine.gpu]` and of `[scheduler]`.
    pub fn with_gpu(&mut self, engine: &str, scheduler: &str) {
        let [gateway, sections] = gpu_lines(engine, scheduler);
        self.gateway = gateway + &self.gateway;
        self.policies += &sections;
    }

    /// AF_XDP at both sides, at the interfaces of `support::sites`, with further lines for both.
    pub fn with_xdp(&mut self, more: &str) {
        let port = |interface| format!("kind = \"xdp\"\ninterface = \"{interface}\"\n{more}");
        self.kinds = ["lan", "wan"].map(|interface| Some(port(interface)));
    }

    /// TAP devices of DPDK's at both sides, `dtap0` and `dtap1`, which have the addresses of the left gateway
    /// of `support::sites`.
    pub fn with_dpdk_taps(&mut self, library: &Path) {
        let port = |number: usize, addresses: [&str; 2], more: &str| {
            let [v4, v6] = addresses;
            Some(format!(
                "kind = \"dpdk\"\ndevice = \"net_tap{number},iface=dtap{number}\"\n\
                 addresses = [\"{v4}/24\", \"{v6}/64\"]\nlibrary = \"{}\"\neal = [\"--no-huge\"]\n{more}",
                library.display()
            ))
        };
        let routers = ROUTER.map(|via| format!("\"default via {via}\"")).join(", ");
        self.kinds = [
            port(0, ["10.1.0.1", "fd01::1"], ""),
            port(1, [OUTER[0][0], OUTER[1][0]], &format!("next_hops = [{routers}]")),
        ];
    }

    /// Writes configuration and key files into `folder`, replacing those there.
    pub fn write(&self, folder: &Path) -> Outcome<()> {
        for tunnel in &self.tunnels {
            let of_ah = tunnel.covered_by.iter().flatten();
            let own = tunnel.own.iter().flat_map(|(_, sas)| sas).flatten();
            for sa in [&tunnel.outbound, &tunnel.inbound].into_iter().chain(of_ah).chain(own) {
                write_private(&folder.join(format!("{:x}.key", sa.spi)), &sa.key)?;
            }
        }
        write_private(&folder.join(CONFIGURATION), &self.text())
    }

    /// Every key, in hex.
    pub fn keys(&self) -> Vec<&str> {
        self.tunnels.iter().flat_map(|t| [t.outbound.key.as_str(), &t.inbound.key]).collect()
    }
}

/// The configurations of the two ends of a tunnel between 192.0.2.1 and 192.0.2.2, with 10.1.0.1 and 10.2.0.1
/// inside.
pub fn pair(udp: bool) -> Outcome<[Config; 2]> {
    let suite = "aes128gcm16";
    let tunnel = Tunnel {
        name: "a-b".to_owned(),
        local: "192.0.2.1".to_owned(),
        remote: "192.0.2.2".to_owned(),
        suite: suite.to_owned(),
        udp,
        vpe: false,
        esn: true,
        selectors: vec![("10.1.0.1".to_owned(), "10.2.0.1".to_owned())],
        outbound: Sa::random(0x1001, suite)?,
        inbound: Sa::random(0x1002, suite)?,
        covered_by: None,
        own: Vec::new(),
        more: String::new(),
    };
    let end = |address: &str, tunnel: Tunnel| Config {
        addresses: vec![format!("{address}/32")],
        tunnels: vec![tunnel],
        ..Config::default()
    };
    Ok([end("10.1.0.1", tunnel.clone()), end("10.2.0.1", tunnel.mirrored())])
}

/// Writes a file that only its owner may read; an old one is replaced in one step, as an editor does.
pub fn write_private(path: &Path, text: &str) -> Outcome<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    Ok(fs::rename(new, path)?)
}
