//! What the packet scheduler has done.

use super::{Labels, family};
use prometheus_client::encoding::DescriptorEncoder;
use std::collections::BTreeMap;
use std::fmt;
use testudo_gateway::Scheduled;

/// Engines without bins have no lines, and without such engines there is none.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    all: &BTreeMap<&'static str, Scheduled>,
) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    let of = |name: &str| -> Labels { vec![("engine", name.to_owned())] };
    let chunks = all.iter().map(|(name, scheduled)| (of(name), scheduled.chunks));
    family(encoder, "scheduler_chunks", "Chunks of packets that were gathered for an engine", chunks)?;
    let packets = all.iter().map(|(name, scheduled)| (of(name), scheduled.packets));
    family(encoder, "scheduler_packets", "Packets that an engine took of its chunks", packets)?;
    let spilled = all.iter().flat_map(|(name, scheduled)| {
        [("no_room", scheduled.no_room), ("too_late", scheduled.too_late)].map(|(reason, count)| {
            let mut labels = of(name);
            labels.push(("reason", reason.to_owned()));
            (labels, count)
        })
    });
    family(encoder, "scheduler_spilled", "Packets that went to the next engine, by reason", spilled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    #[derive(Debug)]
    struct Only(BTreeMap<&'static str, Scheduled>);

    impl Collector for Only {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            super::encode(&mut encoder, &self.0)
        }
    }

    fn page(all: BTreeMap<&'static str, Scheduled>) -> String {
        let (mut registry, mut page) = (Registry::default(), String::new());
        registry.register_collector(Box::new(Only(all)));
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn an_engine_with_bins_is_counted_and_others_have_no_lines() {
        assert!(!page(BTreeMap::new()).contains("scheduler"));
        let scheduled =
            Scheduled { chunks: 3, packets: 700, no_room: 5, too_late: 2, ..Scheduled::default() };
        let page = page(BTreeMap::from([("gpu", scheduled)]));
        for line in [
            "scheduler_chunks_total{engine=\"gpu\"} 3",
            "scheduler_packets_total{engine=\"gpu\"} 700",
            "scheduler_spilled_total{engine=\"gpu\",reason=\"no_room\"} 5",
            "scheduler_spilled_total{engine=\"gpu\",reason=\"too_late\"} 2",
        ] {
            assert!(page.contains(line), "no {line} in {page}");
        }
    }
}
