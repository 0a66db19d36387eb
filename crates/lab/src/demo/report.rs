//! The results of the demonstration: the figures, and the expectations they do not meet.

use serde::Serialize;

use super::DemoOptions;
use crate::capture::Seen;
use crate::gateway::Status;
use crate::network::PortKind;
use crate::protection::Protection;
use crate::table::{Table, grouped};
use crate::traffic::RoundTrips;
use crate::workspace::Workspace;

/// Packets on both sides of a gateway.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Packets {
    protected_rx_packets: u64,
    protected_tx_packets: u64,
    unprotected_rx_packets: u64,
    unprotected_tx_packets: u64,
}

impl Packets {
    pub(super) fn of(status: &Status) -> Self {
        let (protected, unprotected) = (status.ports.protected, status.ports.unprotected);
        Self {
            protected_rx_packets: protected.rx_packets,
            protected_tx_packets: protected.tx_packets,
            unprotected_rx_packets: unprotected.rx_packets,
            unprotected_tx_packets: unprotected.tx_packets,
        }
    }
}

/// Where the gateways are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// Processes in namespaces, with network devices.
    #[default]
    Namespaces,
    /// Workers in this process, joined by memory ports.
    Memory,
}

/// Everything the report shows: the members of `--json`.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Report {
    pub(super) mode: Mode,
    /// What the gateways' packets came and went by.
    pub(super) port: PortKind,
    /// Why the mode is not `namespaces`.
    pub(super) mode_reason: Option<String>,
    /// The mean of both directions.
    pub(super) tcp_gbit_s: Option<f64>,
    pub(super) tcp_gbit_s_a_to_b: Option<f64>,
    pub(super) tcp_gbit_s_b_to_a: Option<f64>,
    /// Rate of UDP data in memory, where there is no TCP.
    pub(super) memory_gbit_s_a_to_b: Option<f64>,
    pub(super) memory_gbit_s_b_to_a: Option<f64>,
    pub(super) memory_packets_sent: u64,
    pub(super) memory_packets_lost: u64,
    /// Median round trip.
    pub(super) ping_ms: Option<f64>,
    pub(super) pings_sent: usize,
    pub(super) pings_lost: usize,
    pub(super) udp_sent: usize,
    pub(super) udp_lost: usize,
    /// The daemon that negotiates, by name and version; `None` for keys from files.
    pub(super) ike_daemon: Option<String>,
    /// How often the CHILD_SA was renewed while packets flowed.
    pub(super) rekeys: Option<u64>,
    /// Numbered datagrams that were sent meanwhile, and those of them that did not arrive.
    pub(super) packets_sent_at_rekey: Option<u64>,
    pub(super) packets_lost_at_rekey: Option<u64>,
    /// Packets of IKE in the recordings.
    pub(super) ike_packets_captured: u64,
    /// Packets on the link that neither ESP nor AH protects, or that show what ESP hides.
    pub(super) cleartext_packets_outside: u64,
    /// Packets that AH alone protects and that the eavesdropper has read.
    pub(super) readable_packets_outside: u64,
    /// Packets of ESP or AH in the recordings; a super-segment counts once.
    pub(super) packets_captured: u64,
    /// Packets of the link that are missing from the recordings.
    pub(super) packets_not_captured: u64,
    pub(super) replayed_sent: u64,
    pub(super) replayed_refused: u64,
    pub(super) forged_sent: u64,
    pub(super) forged_refused: u64,
    /// Packets that left gateway B for its site while only the attacker was sending.
    pub(super) attack_packets_forwarded: u64,
    /// Packets refused as replayed or forged before the attack.
    pub(super) valid_refused: u64,
    pub(super) engine: String,
    /// `esp`, `ah`, `ah+esp`.
    pub(super) protocol: String,
    /// `tunnel` or `transport`.
    pub(super) tunnel_mode: String,
    pub(super) suite: String,
    /// The suite of AH over ESP.
    pub(super) ah_suite: Option<String>,
    pub(super) encapsulation: String,
    /// All of it, for people.
    #[serde(skip)]
    tunnel: String,
    pub(super) gateway_a: Packets,
    pub(super) gateway_b: Packets,
    /// Duration of TCP in each direction.
    pub(super) seconds: u64,
    /// Where the files are, if they are kept.
    pub(super) files: Option<String>,
    pub(super) passed: bool,
    /// One line for each expectation that was not met.
    pub(super) failures: Vec<String>,
}

impl Report {
    fn of(options: &DemoOptions, protection: &Protection, workspace: &Workspace, mode: Mode) -> Self {
        Self {
            mode,
            port: options.port,
            seconds: options.seconds,
            protocol: options.protocol.clone(),
            tunnel_mode: options.mode.clone(),
            suite: protection.suite.clone(),
            ah_suite: protection.ah_suite.clone(),
            encapsulation: protection.encapsulation.clone(),
            tunnel: protection.description(),
            files: options.keep.then(|| workspace.path().display().to_string()),
            ..Self::default()
        }
    }

    pub(super) fn in_namespaces(
        options: &DemoOptions,
        protection: &Protection,
        workspace: &Workspace,
    ) -> Self {
        Self::of(options, protection, workspace, Mode::Namespaces)
    }

    /// `why` states the reason for not using namespaces.
    pub(super) fn in_memory(
        options: &DemoOptions,
        protection: &Protection,
        workspace: &Workspace,
        why: &str,
    ) -> Self {
        let mode_reason = Some(why.to_owned());
        Self { mode_reason, ..Self::of(options, protection, workspace, Mode::Memory) }
    }

    /// Takes both gateways' final status.
    pub(super) fn set_gateways(&mut self, [a, b]: &[Status; 2]) {
        (self.gateway_a, self.gateway_b) = (Packets::of(a), Packets::of(b));
        let suites = [Some(&self.suite), self.ah_suite.as_ref()];
        let of = |status: &Status| {
            let mut engines: Vec<_> = suites.iter().flatten().map(|suite| status.engine(suite)).collect();
            engines.dedup();
            engines.join(", ")
        };
        self.engine = match (of(a), of(b)) {
            (a, b) if a == b => a,
            (a, b) => format!("{a} (A), {b} (B)"),
        };
    }

    pub(super) fn add_pings(&mut self, trips: &RoundTrips) {
        self.pings_sent += trips.times.len() + trips.lost;
        self.pings_lost += trips.lost;
    }

    pub(super) fn add_udp(&mut self, trips: &RoundTrips) {
        self.udp_sent += trips.times.len() + trips.lost;
        self.udp_lost += trips.lost;
    }

    /// Adds a stream of numbered datagrams: how many there were, and which of them did not arrive.
    pub(super) fn add_numbered(&mut self, sent: u64, lost: &[u64]) {
        let lost = u64::try_from(lost.len()).unwrap_or(u64::MAX);
        *self.packets_sent_at_rekey.get_or_insert(0) += sent;
        *self.packets_lost_at_rekey.get_or_insert(0) += lost;
    }

    pub(super) fn set_seen(&mut self, seen: &Seen) {
        self.cleartext_packets_outside = seen.cleartext;
        self.readable_packets_outside = seen.readable;
        self.packets_captured = seen.protected;
        self.ike_packets_captured = seen.ike;
        self.packets_not_captured = seen.not_recorded;
    }

    /// Checks every expectation. Failures that were noted before are kept.
    pub(super) fn conclude(&mut self) {
        let both = self.tcp_gbit_s_a_to_b.zip(self.tcp_gbit_s_b_to_a);
        self.tcp_gbit_s = both.map(|(there, back)| f64::midpoint(there, back));
        let (data, there, back) = match self.mode {
            Mode::Namespaces => ("TCP", self.tcp_gbit_s_a_to_b, self.tcp_gbit_s_b_to_a),
            Mode::Memory => ("UDP", self.memory_gbit_s_a_to_b, self.memory_gbit_s_b_to_a),
        };
        let negotiates = self.ike_daemon.is_some();
        let (numbered, missing) =
            (self.packets_sent_at_rekey.unwrap_or(0), self.packets_lost_at_rekey.unwrap_or(0));
        let (sent, lost) = (self.memory_packets_sent, self.memory_packets_lost);
        let expectations = [
            (self.pings_lost == 0, format!("{} of {} pings got no answer", self.pings_lost, self.pings_sent)),
            (
                self.udp_lost == 0,
                format!("{} of {} UDP datagrams did not come back", self.udp_lost, self.udp_sent),
            ),
            (there > Some(0.0), format!("no {data} data from site A to site B")),
            (back > Some(0.0), format!("no {data} data from site B to site A")),
            (lost == 0, format!("{lost} of {sent} UDP packets were lost in memory")),
            (!negotiates || self.rekeys > Some(0), "SAs were never renewed".to_owned()),
            (!negotiates || numbered > 0, "no datagram was sent while SAs were renewed".to_owned()),
            (missing == 0, format!("{missing} of {numbered} datagrams were lost while SAs were renewed")),
            (
                !negotiates || self.ike_packets_captured > 0,
                "no packet of IKE was seen on the link".to_owned(),
            ),
            (self.packets_captured > 0, format!("no {} packet was seen on the link", self.header())),
            (
                !self.is_readable() || self.readable_packets_outside > 0,
                "nothing was read on the link, though AH hides nothing: the eavesdropper did not look"
                    .to_owned(),
            ),
            (
                self.cleartext_packets_outside == 0,
                format!("{} cleartext packets on the unprotected link", self.cleartext_packets_outside),
            ),
            (
                self.valid_refused == 0,
                format!("{} valid packets refused as replayed or forged", self.valid_refused),
            ),
            (
                self.replayed_sent > 0 && self.replayed_refused == self.replayed_sent,
                format!("{} replayed packets sent, {} refused", self.replayed_sent, self.replayed_refused),
            ),
            (
                self.forged_sent > 0 && self.forged_refused == self.forged_sent,
                format!("{} forged packets sent, {} refused", self.forged_sent, self.forged_refused),
            ),
            (
                self.attack_packets_forwarded == 0,
                format!("{} of the attacker's packets reached site B", self.attack_packets_forwarded),
            ),
        ];
        let failed = expectations.into_iter().filter(|(met, _)| !met).map(|(_, failure)| failure);
        self.failures.extend(failed);
        self.passed = self.failures.is_empty();
    }

    /// Whether the tunnel authenticates only.
    fn is_readable(&self) -> bool {
        self.protocol == "ah"
    }

    fn is_vpe(&self) -> bool {
        self.tunnel.starts_with("vpe")
    }

    /// The outermost header of the tunnel's packets.
    fn header(&self) -> &'static str {
        if self.protocol.starts_with("ah") {
            "AH"
        } else if self.is_vpe() {
            "VPE"
        } else {
            "ESP"
        }
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let verdict = if self.passed { "✓ every expectation met" } else { "✗ failed" };
        let files = self.files.as_ref().map(|path| format!("  files: {path}\n")).unwrap_or_default();
        format!("{}\n{}\n{}\n  {verdict}\n{files}", self.speed(), self.sides(), self.security())
    }

    /// The rate in this mode, or an explicit statement that there is none.
    fn rate(&self, tcp: Option<f64>, memory: Option<f64>) -> String {
        match (self.mode, tcp, memory) {
            (Mode::Memory, _, Some(rate)) => format!("not in this mode; UDP in memory: {rate:.2} Gbit/s"),
            (_, Some(rate), _) => format!("{rate:.2} Gbit/s"),
            _ => "none".to_owned(),
        }
    }

    fn speed(&self) -> String {
        let ping = self.ping_ms.map_or_else(|| "none".to_owned(), |ms| format!("{ms:.3} ms"));
        // Numbers of VPE have no short form.
        let esn = if self.is_vpe() { "" } else { ", ESN" };
        let mut rows = vec![("tunnel", format!("{}{esn}", self.tunnel))];
        let ports = match self.port {
            PortKind::Tun => None,
            PortKind::Xdp => Some("AF_XDP in native mode"),
            PortKind::Dpdk => Some("DPDK's TAP, without huge pages"),
            PortKind::DpdkOnCables => Some("DPDK's AF_XDP, without huge pages"),
        };
        rows.extend(ports.map(|ports| ("ports, both sides", ports.to_owned())));
        rows.extend(self.ike_daemon.as_ref().map(|daemon| ("keys negotiated by", format!("two {daemon}"))));
        rows.extend([
            ("engine in use", self.engine.clone()),
            ("TCP, site A → site B", self.rate(self.tcp_gbit_s_a_to_b, self.memory_gbit_s_a_to_b)),
            ("TCP, site B → site A", self.rate(self.tcp_gbit_s_b_to_a, self.memory_gbit_s_b_to_a)),
            ("round trip (median ping)", ping),
        ]);
        rows.extend(self.renewals());
        pairs(&rows)
    }

    /// Rekeys, and what was lost at them.
    fn renewals(&self) -> Option<(&'static str, String)> {
        let (rekeys, sent, lost) = (self.rekeys?, self.packets_sent_at_rekey?, self.packets_lost_at_rekey?);
        let mark = if lost == 0 { "✓" } else { "✗" };
        let what = format!("{mark} {rekeys} times; {} of {} datagrams lost", grouped(lost), grouped(sent));
        Some(("SAs renewed under load", what))
    }

    fn sides(&self) -> String {
        let (a, b) = (&self.gateway_a, &self.gateway_b);
        let row = |name: &str, a, b| vec![name.to_owned(), grouped(a), grouped(b)];
        Table::report(vec![
            ["packets                 ", "gateway A", "gateway B"].map(str::to_owned).to_vec(),
            row("from protected side", a.protected_rx_packets, b.protected_rx_packets),
            row("to unprotected side", a.unprotected_tx_packets, b.unprotected_tx_packets),
            row("from unprotected side", a.unprotected_rx_packets, b.unprotected_rx_packets),
            row("to protected side", a.protected_tx_packets, b.protected_tx_packets),
        ])
        .to_string()
    }

    fn security(&self) -> String {
        let mark = |good| if good { "✓" } else { "✗" };
        let refused = |refused: u64, sent: u64| format!("{} {refused} of {sent}", mark(refused == sent));
        // A super-segment, which the kernel delivers in one piece, is recorded as one packet.
        let joined = if self.mode == Mode::Namespaces { ", segments joined" } else { "" };
        let mut recorded = format!("{} {}{joined}", grouped(self.packets_captured), self.header());
        if self.packets_not_captured > 0 {
            recorded += &format!(", {} missed", grouped(self.packets_not_captured));
        }
        let cleartext = self.cleartext_packets_outside;
        if self.ike_packets_captured > 0 {
            recorded += &format!("; {} IKE", grouped(self.ike_packets_captured));
        }
        let mut rows = vec![("recorded on the link", recorded)];
        if self.is_readable() {
            let read = grouped(self.readable_packets_outside);
            rows.push(("read by the eavesdropper", format!("{read}: AH authenticates, and hides nothing")));
        }
        let outside = if self.is_readable() { "unprotected outside" } else { "cleartext seen outside" };
        rows.extend([
            (outside, format!("{} {}", mark(cleartext == 0), grouped(cleartext))),
            ("replayed packets refused", refused(self.replayed_refused, self.replayed_sent)),
            ("forged packets refused", refused(self.forged_refused, self.forged_sent)),
        ]);
        pairs(&rows)
    }
}

/// A label and its value per line.
fn pairs(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(label, value)| format!("  {label:<26} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        let mut report = Report {
            tcp_gbit_s_a_to_b: Some(9.0),
            tcp_gbit_s_b_to_a: Some(8.0),
            ping_ms: Some(0.1),
            packets_captured: 5,
            replayed_sent: 16,
            replayed_refused: 16,
            forged_sent: 8,
            forged_refused: 8,
            engine: "portable".to_owned(),
            ..Report::default()
        };
        report.conclude();
        report
    }

    fn broken(change: impl FnOnce(&mut Report)) -> Vec<String> {
        let mut report = good();
        change(&mut report);
        report.conclude();
        assert_eq!(report.passed, report.failures.is_empty());
        report.failures
    }

    #[test]
    fn a_good_run_passes_and_every_broken_promise_is_named() {
        assert!(good().passed);
        assert_eq!(good().tcp_gbit_s, Some(8.5));
        assert_eq!(
            broken(|r| r.cleartext_packets_outside = 1),
            ["1 cleartext packets on the unprotected link"]
        );
        assert_eq!(broken(|r| r.replayed_refused = 15), ["16 replayed packets sent, 15 refused"]);
        assert_eq!(broken(|r| r.forged_refused = 9), ["8 forged packets sent, 9 refused"]);
        assert_eq!(broken(|r| r.valid_refused = 2), ["2 valid packets refused as replayed or forged"]);
        assert_eq!(
            broken(|r| r.attack_packets_forwarded = 1),
            ["1 of the attacker's packets reached site B"]
        );
        assert_eq!(broken(|r| r.tcp_gbit_s_b_to_a = Some(0.0)), ["no TCP data from site B to site A"]);
        assert_eq!(broken(|r| r.packets_captured = 0), ["no ESP packet was seen on the link"]);
        assert_eq!(broken(|r| r.pings_lost = 1).len(), 1);
        assert_eq!(broken(|r| r.udp_lost = 1).len(), 1);
        // An attack that did not take place proves nothing.
        assert_eq!(
            broken(|r| (r.forged_sent, r.forged_refused) = (0, 0)),
            ["0 forged packets sent, 0 refused"]
        );
    }

    #[test]
    fn the_table_names_vpe_where_the_tunnel_is_one() {
        let mut report = Report { tunnel: "vpe, aes128gcm16".to_owned(), ..good() };
        report.conclude();
        let table = report.table();
        assert!(table.contains("5 VPE, segments joined") && !table.contains("ESN"), "{table}");
    }

    #[test]
    fn the_object_has_the_members_that_scripts_rely_on() {
        let value = serde_json::to_value(good()).unwrap();
        for member in [
            "tcp_gbit_s",
            "ping_ms",
            "cleartext_packets_outside",
            "replayed_refused",
            "forged_refused",
            "engine",
        ] {
            assert!(value.get(member).is_some_and(|value| !value.is_null()), "{member}");
        }
        assert_eq!(value["passed"], true);
    }

    #[test]
    fn in_memory_udp_is_expected_instead_of_tcp_and_the_table_says_so() {
        let mut report = Report { mode: Mode::Memory, ..good() };
        (report.tcp_gbit_s_a_to_b, report.tcp_gbit_s_b_to_a) = (None, None);
        (report.memory_gbit_s_a_to_b, report.memory_gbit_s_b_to_a) = (Some(3.0), Some(4.0));
        report.memory_packets_sent = 9;
        report.conclude();
        assert!(report.passed && report.tcp_gbit_s.is_none(), "{:?}", report.failures);
        let table = report.table();
        assert!(table.contains("not in this mode; UDP in memory: 3.00 Gbit/s"), "{table}");
        report.memory_packets_lost = 2;
        report.memory_gbit_s_b_to_a = None;
        report.conclude();
        assert_eq!(
            report.failures,
            ["no UDP data from site B to site A", "2 of 9 UDP packets were lost in memory"]
        );
    }

    #[test]
    fn with_daemons_every_datagram_must_survive_the_rekeys_that_there_must_be() {
        let mut report = Report {
            ike_daemon: Some("strongSwan 5.9.8".to_owned()),
            rekeys: Some(4),
            ike_packets_captured: 30,
            ..good()
        };
        report.add_numbered(500, &[]);
        report.add_numbered(400, &[]);
        report.conclude();
        assert!(report.passed, "{:?}", report.failures);
        let table = report.table();
        for part in
            ["two strongSwan 5.9.8", "✓ 4 times; 0 of 900 datagrams lost", "5 ESP, segments joined; 30 IKE"]
        {
            assert!(table.contains(part), "{part}: {table}");
        }
        report.add_numbered(100, &[7, 8]);
        (report.rekeys, report.ike_packets_captured) = (Some(0), 0);
        report.conclude();
        assert_eq!(
            report.failures,
            [
                "SAs were never renewed",
                "2 of 1000 datagrams were lost while SAs were renewed",
                "no packet of IKE was seen on the link",
            ]
        );
        assert!(report.table().contains("✗ 0 times; 2 of 1,000"), "{}", report.table());
        let none =
            Report { ike_daemon: report.ike_daemon, rekeys: Some(1), ike_packets_captured: 1, ..good() };
        assert_eq!(broken(|r| *r = none), ["no datagram was sent while SAs were renewed"]);
    }

    /// Who uses AH alone is told what it means, and a blind eavesdropper proves nothing.
    #[test]
    fn with_ah_the_report_says_that_packets_were_read() {
        let mut report = Report { protocol: "ah".to_owned(), readable_packets_outside: 1500, ..good() };
        report.conclude();
        let table = report.table();
        assert!(report.passed && table.contains("1,500: AH authenticates, and hides nothing"), "{table}");
        assert!(table.contains("5 AH") && !table.contains("cleartext seen"), "{table}");
        report.cleartext_packets_outside = 1;
        report.readable_packets_outside = 0;
        report.conclude();
        assert_eq!(report.failures.len(), 2, "{:?}", report.failures);
    }

    #[test]
    fn the_table_marks_what_is_wrong() {
        assert!(!good().table().contains('✗'));
        let mut report = good();
        report.cleartext_packets_outside = 1234;
        report.conclude();
        let table = report.table();
        assert!(table.contains("✗ 1,234") && table.contains("✗ failed"), "{table}");
    }
}
