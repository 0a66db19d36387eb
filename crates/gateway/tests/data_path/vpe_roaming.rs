//! A peer of VPE that moves (`docs/VPE.md`, "A peer that moves"), and who would have it move: an attacker who
//! has packets of each window that he has kept back, and sends them from a place of his own.

use crate::support::learner::{Learner, Place, packet, spec};
use crate::support::{LeaseTwin, Side, TunnelSpec};
use std::net::IpAddr;
use std::time::Duration;
use testudo_gateway::{SaChange, TunnelInstall};
use testudo_ipsec::{Encapsulation, Endpoints, TunnelParameters};
use testudo_packet::DropReason;

/// How long a peer must be silent at its old address before it is followed.
const SILENCE: Duration = Duration::from_secs(1);
const HOME: Place = (7, 1111);
const ELSEWHERE: Place = (9, 2222);
const ATTACKER: Place = (66, 6666);
/// A window that is busy, and one that is idle.
const BUSY: u16 = 3;
const IDLE: u16 = 4;

/// B, which has heard of its peer at home in both windows; then ten seconds long of the busy one, whose next
/// number this is, twice a second, at worker 0.
fn at_home(workers: usize) -> (Learner, u64) {
    let mut b = Learner::new(workers);
    assert_eq!(b.receive(0, packet(BUSY, 5000, HOME)), (1, vec![HOME]));
    assert_eq!(b.receive(1, packet(IDLE, 10, HOME)), (1, vec![]));
    for number in 5001..=5020 {
        b.wait(SILENCE / 2);
        assert_eq!(b.receive(0, packet(BUSY, number, HOME)), (1, vec![]));
    }
    (b, 5021)
}

/// The packet is authentic and the newest of its window, but the peer may have sent it long ago: whether the
/// peer speaks in another window, at another worker, or is silent, it stays.
#[test]
fn a_packet_that_was_kept_back_of_an_idle_window_moves_nobody() {
    for (workers, at) in [(1, 0), (3, 0), (3, 1), (3, 2)] {
        for silence in [SILENCE / 2, 2 * SILENCE, 1000 * SILENCE] {
            let (mut b, next) = at_home(workers);
            b.wait(silence);
            assert_eq!(
                b.receive(at, packet(IDLE, 11, ATTACKER)),
                (1, vec![]),
                "{workers}, {at}, {silence:?}"
            );
            assert_eq!(b.target(), Some(HOME));
            assert_eq!(b.receive(at, packet(IDLE, 11, ATTACKER)), (0, vec![]), "a replay");
            // Nor one of each window that there may be.
            for window in 100..150 {
                assert_eq!(b.receive(at, packet(window, 9000, ATTACKER)), (1, vec![]));
            }
            assert_eq!(b.target(), Some(HOME));
            assert_eq!(b.receive(0, packet(BUSY, next, HOME)), (1, vec![]));
        }
    }
}

/// What was kept back of a busy window is old once the next one has come.
#[test]
fn a_packet_that_was_kept_back_of_a_busy_window_moves_nobody() {
    for (workers, at) in [(1, 0), (3, 0), (3, 1)] {
        let (mut b, next) = at_home(workers);
        // Number `next` is kept back.
        assert_eq!(b.receive(0, packet(BUSY, next + 1, HOME)), (1, vec![]));
        b.wait(10 * SILENCE);
        assert_eq!(b.receive(at, packet(BUSY, next, ATTACKER)), (1, vec![]), "late, but authentic");
        assert_eq!(b.target(), Some(HOME));
    }
}

/// What a peer sends now, in any window, moves nobody while any worker hears it at home.
#[test]
fn a_peer_that_one_worker_hears_is_moved_by_no_other_one() {
    let (mut b, next) = at_home(3);
    for n in 0..100 {
        b.wait(Duration::from_millis(333));
        assert_eq!(b.receive(0, packet(BUSY, next + 2 * n, HOME)), (1, vec![]));
        b.wait(Duration::from_millis(333));
        assert_eq!(b.receive(1, packet(BUSY, next + 2 * n + 1, ATTACKER)), (1, vec![]));
        assert_eq!(b.receive(2, packet(IDLE, 11 + n, ATTACKER)), (1, vec![]));
        assert_eq!(b.target(), Some(HOME));
    }
}

/// Of many windows that were heard, one goes on elsewhere, with lower numbers than the others have.
#[test]
fn a_move_is_followed_by_one_window_at_whichever_worker() {
    for (workers, at) in [(1, 0), (3, 0), (3, 1), (3, 2)] {
        let (mut b, _) = at_home(workers);
        for window in 20..30 {
            assert_eq!(b.receive(0, packet(window, 500 + u64::from(window), HOME)), (1, vec![]));
        }
        b.wait(SILENCE - Duration::from_millis(1));
        assert_eq!(b.receive(at, packet(25, 600, ELSEWHERE)), (1, vec![]));
        b.wait(Duration::from_millis(1));
        assert_eq!(b.receive(at, packet(25, 601, ELSEWHERE)), (1, vec![ELSEWHERE]), "{workers}, {at}");
        assert_eq!(b.target(), Some(ELSEWHERE));
        b.workers.iter().for_each(|worker| worker.assert_settled());
    }
}

/// Of a window that was idle or is new, the second packet is followed, at another worker than the first.
#[test]
fn a_move_is_followed_by_the_second_packet_of_a_window_that_was_idle() {
    for (workers, window, first) in [(1, IDLE, 11), (3, IDLE, 11), (1, 77, 1), (3, 77, 1)] {
        let (mut b, _) = at_home(workers);
        b.wait(SILENCE);
        assert_eq!(b.receive(1, packet(window, first, ELSEWHERE)), (1, vec![]));
        assert_eq!(b.receive(2, packet(window, first + 1, ELSEWHERE)), (1, vec![ELSEWHERE]));
        assert_eq!(b.target(), Some(ELSEWHERE));
    }
}

/// There and back, in one window, at any workers: by the first packet after each second of silence.
#[test]
fn a_peer_that_moves_back_is_followed_back() {
    for workers in [1, 3] {
        let (mut b, _) = at_home(workers);
        b.receive(0, packet(IDLE, 11, HOME));
        for (n, number) in (12..40).enumerate() {
            let place = if n % 2 == 0 { ELSEWHERE } else { HOME };
            b.wait(SILENCE);
            assert_eq!(b.receive(n, packet(IDLE, number, place)), (1, vec![place]), "{workers}, {number}");
            assert_eq!(b.target(), Some(place));
        }
    }
}

/// Two workers find the move before either has heard of it: one says so, and the other sends there, too, and
/// has the peer for alive there.
#[test]
fn workers_that_find_a_move_at_once_agree() {
    let (mut b, next) = at_home(3);
    b.wait(SILENCE);
    let (_, found) = b.take(0, packet(BUSY, next, ELSEWHERE));
    assert_eq!(found.len(), 1);
    let (delivered, also) = b.take(1, packet(BUSY, next + 1, ELSEWHERE));
    assert_eq!((delivered, also.len()), (1, 0));
    assert_eq!([0, 1, 2].map(|worker| b.target_of(worker)), [ELSEWHERE, ELSEWHERE, HOME].map(Some));
    // The third one hears nothing of all that, but a packet of the attacker's.
    b.wait(SILENCE / 2);
    let (delivered, also) = b.take(2, packet(BUSY, next + 2, ATTACKER));
    assert_eq!((delivered, also.len()), (1, 0), "the peer is alive where it has moved");
    (0..3).for_each(|worker| b.tell(worker, found[0]));
    assert_eq!(b.target(), Some(ELSEWHERE));
}

/// A worker that has not heard of a move has the peer at the old place by itself: what comes from there is
/// judged as from any other place, so that a peer that comes back to this worker alone is found by all.
#[test]
fn a_worker_that_has_heard_of_no_move_finds_the_peer_back_for_all() {
    let (mut b, next) = at_home(3);
    b.wait(SILENCE);
    let (_, found) = b.take(0, packet(BUSY, next, ELSEWHERE));
    b.tell(1, found[0]);
    b.wait(SILENCE / 2);
    assert_eq!(b.take(2, packet(BUSY, next + 1, HOME)).1, [], "it is alive elsewhere");
    b.wait(SILENCE / 2);
    // Without the one before, which was not heard where the peer was.
    assert_eq!(b.receive(2, packet(BUSY, next + 2, HOME)), (1, vec![HOME]));
    assert_eq!(b.target(), Some(HOME));
}

/// What is not promised: who has several packets of an idle window moves a peer that is silent. Each of them
/// keeps it away for a second, while it speaks at home in other windows; then it is followed back.
#[test]
fn each_packet_that_was_kept_back_keeps_a_silent_peer_away_for_a_second_at_most() {
    for (workers, packets) in [(1, 2), (3, 2), (1, 5), (3, 5)] {
        let (mut b, mut next) = at_home(workers);
        b.wait(2 * SILENCE);
        let mut kept = (11..).take(packets);
        let mut send =
            |b: &mut Learner| kept.next().map(|number| b.receive(1, packet(IDLE, number, ATTACKER)).1);
        assert_eq!((send(&mut b), send(&mut b)), (Some(vec![]), Some(vec![ATTACKER])));
        let mut away = Duration::ZERO;
        let step = Duration::from_millis(100);
        loop {
            b.wait(step);
            away += step;
            let moves = b.receive(0, packet(BUSY, next, HOME)).1;
            next += 1;
            if !moves.is_empty() {
                assert_eq!(moves, [HOME]);
                break;
            }
            if away.subsec_millis() == 900 {
                send(&mut b);
            }
        }
        let at_most = SILENCE * u32::try_from(packets - 1).expect("few");
        assert!(away <= at_most, "{workers}, {packets}: {away:?}");
        assert_eq!(b.target(), Some(HOME));
    }
}

/// Who has kept back many packets of a window in which the peer goes on keeps it away no longer than by the
/// one that moved it: the others are old.
#[test]
fn old_packets_keep_nobody_away() {
    for workers in [1, 3] {
        let (mut b, next) = at_home(workers);
        // Some are kept back, among them the peer's last words before a silence.
        b.receive(0, packet(BUSY, next + 40, HOME));
        b.wait(SILENCE);
        assert_eq!(b.receive(1, packet(BUSY, next + 41, ATTACKER)), (1, vec![ATTACKER]));
        for n in 0..9 {
            b.wait(SILENCE / 10);
            assert_eq!(b.receive(1, packet(BUSY, next + n, ATTACKER)), (1, vec![]), "late, but authentic");
            assert_eq!(b.receive(0, packet(BUSY, next + 42 + n, HOME)), (1, vec![]));
        }
        b.wait(SILENCE / 10);
        assert_eq!(b.receive(0, packet(BUSY, next + 51, HOME)), (1, vec![HOME]));
        assert_eq!(b.target(), Some(HOME));
    }
}

/// A worker has found a move, and before the others hear of that, a key exchange has put the peer elsewhere.
/// There it stays, for a second at least.
#[test]
fn a_late_notice_of_a_move_moves_nobody_from_where_a_key_exchange_put_it() {
    let (mut b, next) = at_home(3);
    b.wait(SILENCE);
    let (_, found) = b.take(0, packet(BUSY, next, ATTACKER));
    assert_eq!(found.len(), 1);
    let known = TunnelSpec { b_learns: false, ..spec() }.parameters(Side::B).endpoints;
    let remote = known.remote.map(|remote| match remote {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            IpAddr::from([a, b, c, ELSEWHERE.0])
        }
        IpAddr::V6(_) => remote,
    });
    let Encapsulation::EspInUdp { local_port, .. } = known.encapsulation else { panic!("not in UDP") };
    let encapsulation = Encapsulation::EspInUdp { local_port, remote_port: ELSEWHERE.1 };
    let ends = Endpoints { remote, encapsulation, ..known };
    for gateway in &mut b.workers {
        let now = gateway.now();
        gateway.worker.change_sa(SaChange::Redirect(spec().index(), ends, true), now).expect("it is there");
    }
    (0..3).for_each(|worker| b.tell(worker, found[0]));
    assert_eq!(b.target(), Some(ELSEWHERE));
    b.wait(SILENCE / 2);
    assert_eq!(b.receive(0, packet(BUSY, next + 1, HOME)), (1, vec![]), "it was under way");
    b.wait(SILENCE);
    assert_eq!(b.receive(1, packet(BUSY, next + 2, HOME)), (1, vec![HOME]));
    assert_eq!(b.target(), Some(HOME));
}

/// A tunnel whose peer could not move, and can now: what was received before it was watched counts.
#[test]
fn numbers_that_came_before_an_sa_was_watched_are_no_news_later() {
    for workers in [1, 3] {
        let fixed = TunnelSpec { b_learns: false, ..spec() };
        let ends = fixed.parameters(Side::B).endpoints;
        let mut b = Learner::installed(workers, fixed.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
        for number in [100, 5000, 4999] {
            assert_eq!(b.receive(0, packet(BUSY, number, HOME)), (1, vec![]));
        }
        for gateway in &mut b.workers {
            let now = gateway.now();
            let learns = SaChange::Redirect(spec().index(), ends, true);
            gateway.worker.change_sa(learns, now).expect("there is such a tunnel");
        }
        b.wait(2 * SILENCE);
        for (at, late) in (4990..4995).enumerate() {
            assert_eq!(b.receive(at, packet(BUSY, late, ATTACKER)), (1, vec![]), "late, but authentic");
        }
        assert_ne!(b.target(), Some(ATTACKER));
        assert_eq!(b.receive(1, packet(BUSY, 5001, ELSEWHERE)), (1, vec![ELSEWHERE]));
        assert_eq!(b.target(), Some(ELSEWHERE));
    }
}

/// Hostile: what was there before and what nobody sealed moves nobody, in any window and at any worker.
#[test]
fn no_replay_and_no_forgery_moves_the_peer_in_any_window() {
    for workers in [1, 3] {
        let (mut b, next) = at_home(workers);
        b.wait(2 * SILENCE);
        for worker in 0..workers {
            for (window, number) in [(BUSY, next - 1), (IDLE, 10)] {
                let mut refused = |bytes| assert_eq!(b.receive(worker, bytes), (0, vec![]));
                refused(packet(window, number, ATTACKER));
                let mut forged = packet(window, number + 1, ATTACKER);
                *forged.last_mut().expect("a text") ^= 1;
                refused(forged);
                // The number is protected by the nonce.
                let mut renumbered = packet(window, number, ATTACKER);
                renumbered[32] ^= 64;
                refused(renumbered);
            }
        }
        assert_eq!(b.target(), Some(HOME));
        let replays = b.workers.iter().map(|worker| worker.drops(DropReason::ReplayDuplicate)).sum::<u64>();
        assert_eq!(replays, 2 * workers as u64);
    }
}

/// A tunnel whose peer is known from the start is followed by the first packet, as where a NAT is on the way.
#[test]
fn a_peer_that_was_never_heard_is_followed_by_its_first_packet() {
    let fixed = TunnelSpec { b_learns: false, ..spec() };
    let install = fixed.install(Side::B, &mut LeaseTwin::new(1 << 40), None);
    let parameters = TunnelParameters { learn_remote: true, ..install.parameters };
    let mut b = Learner::installed(3, TunnelInstall { parameters, ..install });
    assert_eq!(b.receive(2, packet(IDLE, 1, ELSEWHERE)), (1, vec![ELSEWHERE]));
    assert_eq!(b.receive(1, packet(BUSY, 1, ATTACKER)), (1, vec![]));
    assert_eq!(b.target(), Some(ELSEWHERE));
}
