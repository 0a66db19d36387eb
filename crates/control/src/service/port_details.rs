//! What a fast port tells of its device, beside the packets that passed: for status, `top` and metrics. A
//! kind of port says it in words of its own, so that nothing here knows any.

use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A port that has something to tell, from any thread.
pub trait PortDetails: Send + Sync {
    /// The state now.
    fn details(&self) -> PortDetail;
}

/// The state of a port's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortDetail {
    /// The kind, as in the configuration.
    pub kind: &'static str,
    /// The device's name.
    pub device: String,
    /// How it was opened, by name: a text, a number, `true`, or null.
    pub facts: Vec<(&'static str, Value)>,
    /// Its queues.
    pub queues: Vec<QueueDetail>,
}

/// What happened at a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDetail {
    /// Its number.
    pub queue: u32,
    /// Counts that only grow.
    pub counters: Vec<QueueCounter>,
    /// What it has now.
    pub levels: Vec<(&'static str, u64)>,
}

/// A count of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueCounter {
    /// Its name.
    pub name: &'static str,
    /// The count.
    pub value: u64,
    /// Whether it counts packets that were lost.
    pub is_drop: bool,
}

/// Those of both sides; `None` where a side has the kernel's own ports.
#[derive(Default, Clone)]
pub struct BothDetails {
    /// Of the port to the protected side.
    pub protected: Option<Arc<dyn PortDetails>>,
    /// Of the port to the unprotected side.
    pub unprotected: Option<Arc<dyn PortDetails>>,
}

impl BothDetails {
    /// The states of both sides, with the side's name.
    #[must_use]
    pub fn of_both(&self) -> Vec<(&'static str, PortDetail)> {
        let sides = [("protected", &self.protected), ("unprotected", &self.unprotected)];
        sides.into_iter().filter_map(|(side, port)| Some((side, port.as_ref()?.details()))).collect()
    }
}

impl std::fmt::Debug for BothDetails {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.of_both()).finish()
    }
}

impl PortDetail {
    /// As the status has it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let facts: Map<String, Value> =
            self.facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        json!({
            "kind": self.kind,
            "device": self.device,
            "facts": facts,
            "queues": self.queues.iter().map(QueueDetail::to_json).collect::<Vec<_>>(),
            "drops": self.drops(),
        })
    }

    /// Packets that were lost at all queues, by reason; those for which none was are left out.
    fn drops(&self) -> Map<String, Value> {
        let mut sums: Vec<(&str, u64)> = Vec::new();
        for counter in self.queues.iter().flat_map(|queue| &queue.counters).filter(|c| c.is_drop) {
            match sums.iter_mut().find(|(name, _)| *name == counter.name) {
                Some((_, sum)) => *sum += counter.value,
                None => sums.push((counter.name, counter.value)),
            }
        }
        let lost = sums.into_iter().filter(|(_, sum)| *sum > 0);
        lost.map(|(name, sum)| (name.to_owned(), json!(sum))).collect()
    }
}

impl QueueDetail {
    fn to_json(&self) -> Value {
        let counters = self.counters.iter().map(|counter| (counter.name, counter.value));
        let all = counters.chain(self.levels.iter().copied());
        let mut row: Map<String, Value> = all.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        row.insert("queue".to_owned(), json!(self.queue));
        Value::Object(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_all_queues_are_added_up_by_reason() {
        let queue = |queue, full, late| QueueDetail {
            queue,
            counters: vec![
                QueueCounter { name: "ring_full", value: full, is_drop: true },
                QueueCounter { name: "late", value: late, is_drop: true },
                QueueCounter { name: "wakeups", value: 9, is_drop: false },
            ],
            levels: vec![("receiving", 5)],
        };
        let facts = vec![("mode", json!("native"))];
        let queues = vec![queue(0, 3, 0), queue(1, 4, 0)];
        let told = PortDetail { kind: "xdp", device: "eth0".into(), facts, queues }.to_json();
        assert_eq!(told["drops"], json!({ "ring_full": 7 }));
        assert_eq!(told["facts"]["mode"], "native");
        assert_eq!(
            told["queues"][1],
            json!({ "queue": 1, "ring_full": 4, "late": 0, "wakeups": 9, "receiving": 5 })
        );
    }
}
