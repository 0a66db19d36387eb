//! AH over ESP beside asynchronous engines: a datagram passes the engines twice, and both directions end in
//! the same poll.

use crate::late_engine::SharedEngine;
use crate::support::gateway::PoolSize;
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_engine_late::LateConfig;
use testudo_ipsec::{IpsecProtocol, Mode};
use testudo_wire::protocol;

/// The tunnel that is late in both directions: outbound with its ESP, inbound with its AH.
const LATE: Suite = Suite::NULL_SHA384;

/// ESP under a number, and the SAs of AH under the next one.
fn covered(number: u8, esp: Suite, ah: Suite) -> [TunnelSpec; 2] {
    let covers = TunnelSpec {
        covers: Some(number),
        protocol: IpsecProtocol::Ah,
        mode: Mode::Transport,
        ..TunnelSpec::new(number + 1, ah)
    };
    [TunnelSpec { covered_by: Some(number + 1), path_mtu: 1400, ..TunnelSpec::new(number, esp) }, covers]
}

/// What has passed its first SA outbound and what has passed its first SA inbound are submitted together,
/// to an engine that ends both at once. Each still goes to its own side: nothing that was decrypted leaves by
/// the unprotected one.
#[test]
fn both_directions_pass_their_second_sa_together() {
    let [out, into] =
        [covered(0, LATE, Suite::NULL_SHA512), covered(2, Suite::AES128GCM16, LATE)].map(Vec::from);
    let specs = [out, into].concat();
    let engine = SharedEngine::only_for(LATE, LateConfig { polls_max: 1, ..LateConfig::reliable(7) });
    let policies = specs.iter().flat_map(|s| s.policies(Side::A)).collect();
    let mut a = Gateway::new(policies, PoolSize(512, 2048), engine.before_portable());
    let mut store = LeaseTwin::new(1 << 40);
    specs.iter().for_each(|spec| a.install(spec.install(Side::A, &mut store, None)));
    let mut b = Gateway::with_tunnels(Side::B, &specs);
    for round in 0..40 {
        let [leaving, arriving] = [("10.0.0.1", "172.16.0.2"), ("172.18.0.2", "10.0.0.1")]
            .map(|(from, to)| Inner { seed: round, ..Inner::udp(from, to, 200) }.bytes());
        let sealed = b.seal(arriving.clone());
        a.protected.push(leaving.clone());
        sealed.into_iter().for_each(|datagram| a.unprotected.push(datagram));
        a.settle();
        let sent = a.unprotected.take();
        assert!(sent.len() == 1 && sent[0][9] == protocol::AH, "round {round}: {sent:02x?}");
        assert_eq!(a.protected.take(), [arriving], "round {round}");
        assert_eq!(b.open(sent[0].clone()), [leaving], "round {round}");
    }
    a.assert_settled();
    b.assert_settled();
}
