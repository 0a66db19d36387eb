//! One side of the thread, turn by turn.

use super::*;
use testudo_port_memory::MemoryPort;

/// It rests then, as it does for a port that takes nothing: a worker that sleeps takes nothing back.
#[test]
fn a_thread_that_has_more_to_give_back_than_there_is_room_for_waits() {
    let port = || MemoryPort::with_handle("memory", 4).0;
    let (mut ends, mut lane) = lane(&port(), Box::new(port()), None).unwrap();
    let mut pool = Pool::new(4, 100);
    while lane.returns.publish(|_| {}) {}
    assert_eq!(lane.turn(), Did::Nothing);
    assert!(ends.bursts.publish(|burst| burst.extend(pool.pop())));
    assert_eq!(lane.turn(), Did::Something, "the packet has left");
    assert_eq!([lane.turn(), lane.turn()], [Did::Full; 2]);
    let mut taken = 0;
    while ends.returns.take(|strays| {
        taken += strays.drain(..).count();
        true
    }) {}
    assert_eq!((taken, lane.turn()), (0, Did::Something));
    assert!(ends.returns.take(|strays| strays.drain(..).map(|stray| pool.recycle(stray.buffer)).count() > 0));
    assert_eq!((pool.in_use(), lane.turn()), (0, Did::Nothing));
}
