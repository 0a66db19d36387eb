//! A port in memory with a script: what arrives, how much the link takes, what it refuses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Port, PortCounters, PortError};

#[derive(Default)]
struct Link {
    arriving: VecDeque<Vec<u8>>,
    left: Vec<Vec<u8>>,
    /// How many more packets the link takes; `None` for any number.
    room: Option<usize>,
    /// What happens to the next packets sent, in order: refused for a reason, or sent.
    refusals: VecDeque<Option<DropReason>>,
    /// Whether packets are placed at the very front of their buffers.
    leaves_no_room: bool,
    /// Whether datagrams of UDP are given to it whole, as to the kernel's sockets.
    fragments_udp: bool,
    /// Calls that succeed before one fails; `None` if none is to fail.
    fails_after: Option<usize>,
    failures: usize,
    calls: usize,
    /// Lengths of the segments in which packets are delivered, again and again; `None` for a port without
    /// chains.
    segments: Option<VecDeque<usize>>,
}

impl Link {
    /// Counts a call; `true` if it is the one that fails.
    fn call_fails(&mut self) -> bool {
        self.calls += 1;
        let fails = self.fails_after == Some(0);
        self.fails_after = if fails { None } else { self.fails_after.map(|calls| calls - 1) };
        self.failures += usize::from(fails);
        fails
    }
}

/// The test's end of a port.
#[derive(Clone, Default)]
pub struct PortHandle(Arc<Mutex<Link>>);

/// The gateway's end.
struct ScriptedPort {
    name: &'static str,
    link: PortHandle,
    counters: PortCounters,
}

impl PortHandle {
    pub fn port(&self, name: &'static str) -> Box<dyn Port> {
        Box::new(ScriptedPort { name, link: self.clone(), counters: PortCounters::default() })
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.0.lock().expect("no test panics with the link in its hands")
    }

    pub fn push(&self, packet: impl Into<Vec<u8>>) {
        self.link().arriving.push_back(packet.into());
    }

    /// Packets that the gateway has not taken yet.
    pub fn arriving(&self) -> usize {
        self.link().arriving.len()
    }

    /// What the gateway has sent since this was last called.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.link().left)
    }

    /// Packets that the gateway has sent and the test has not taken.
    pub fn departed(&self) -> usize {
        self.link().left.len()
    }

    pub fn set_room(&self, room: Option<usize>) {
        self.link().room = room;
    }

    /// From now on packets begin at the very front of their buffers, where none of our ports places them.
    pub fn leave_no_room(&self) {
        self.link().leaves_no_room = true;
    }

    /// From the next gateway on, the port fragments datagrams of UDP itself.
    pub fn fragment_udp(&self) {
        self.link().fragments_udp = true;
    }

    /// The port fails once, after `calls` more successful calls of `rx` and `tx`.
    pub fn fail_after(&self, calls: usize) {
        self.link().fails_after = Some(calls);
    }

    /// From the next gateway on, packets come in chains of segments of these lengths, in turn.
    pub fn take_chains(&self, lengths: &[usize]) {
        self.link().segments = Some(lengths.iter().copied().collect());
    }

    /// Calls that have failed.
    pub fn failures(&self) -> usize {
        self.link().failures
    }

    /// Calls of `rx` and `tx` so far.
    pub fn calls(&self) -> usize {
        self.link().calls
    }

    pub fn refuse_next(&self, reason: DropReason) {
        self.link().refusals.push_back(Some(reason));
    }
}

impl Port for ScriptedPort {
    fn name(&self) -> &str {
        self.name
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut link = self.link.link();
        let before = batch.len();
        let fails = link.call_fails();
        // Like a truncated file: the packets before the truncation come first.
        let at_most = if fails { before + 3 } else { usize::MAX };
        while !batch.is_full() && !link.arriving.is_empty() && batch.len() < at_most {
            if let Some(mut lengths) = link.segments.take() {
                let chain = link.arriving.pop_front().and_then(|packet| chain(&packet, &mut lengths, pool));
                link.segments = Some(lengths);
                let Some(chain) = chain else { break };
                self.counters.rx_packets += 1;
                self.counters.rx_bytes += chain.chain_bytes() as u64;
                batch.push(chain);
                continue;
            }
            let bytes = link.arriving.front().map_or(0, Vec::len);
            let fits = bytes <= pool.packet_bytes();
            let buffer = if fits { pool.pop_for(bytes) } else { pool.pop() };
            let Some(mut buffer) = buffer else { break };
            let Some(packet) = link.arriving.pop_front() else { break };
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += packet.len() as u64;
            if !fits {
                pool.discard(buffer, DropReason::ReceiveTruncated);
                continue;
            }
            if link.leaves_no_room {
                buffer.reset(0);
            }
            buffer.receive_area()[..packet.len()].copy_from_slice(&packet);
            buffer.set_len(packet.len());
            batch.push(buffer);
        }
        let received = batch.len() - before;
        self.counters.rx_calls += u64::from(received > 0);
        if fails { Err(failure(self.name)) } else { Ok(received) }
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut link = self.link.link();
        let fails = link.call_fails();
        let n = link.room.map_or(batch.len(), |room| room.min(batch.len()));
        let n = if fails { n.min(3) } else { n };
        link.room = link.room.map(|room| room - n);
        for buffer in batch.drain(..n) {
            if let Some(Some(reason)) = link.refusals.pop_front() {
                pool.discard(buffer, reason);
                continue;
            }
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += buffer.len() as u64;
            assert!(link.segments.is_some() || !buffer.is_chain(), "a port without chains got one");
            link.left.push(buffer.segments().flat_map(|segment| segment.bytes().to_vec()).collect());
            pool.recycle(buffer);
        }
        self.counters.tx_calls += u64::from(n > 0);
        if fails { Err(failure(self.name)) } else { Ok(n) }
    }

    fn joins(&self) -> bool {
        false
    }

    fn takes_chains(&self) -> bool {
        self.link.link().segments.is_some()
    }

    fn fragments_udp(&self) -> bool {
        self.link.link().fragments_udp
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

/// A packet in segments of these lengths, as far as it goes.
fn chain(packet: &[u8], lengths: &mut VecDeque<usize>, pool: &mut Pool) -> Option<Buffer> {
    let (mut rest, mut chain): (&[u8], Option<Buffer>) = (packet, None);
    while !rest.is_empty() {
        lengths.rotate_left(1);
        let length = lengths.back().copied().unwrap_or(rest.len()).clamp(1, pool.frame_packet_bytes());
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        let mut segment = pool.pop()?;
        segment.append(piece.len()).expect("a frame").copy_from_slice(piece);
        match &mut chain {
            None => chain = Some(segment),
            Some(chain) => chain.link(segment).expect("few segments"),
        }
        rest = behind;
    }
    chain
}

fn failure(port: &str) -> PortError {
    PortError { port: port.to_owned(), what: "was told to fail".to_owned(), source: None }
}
