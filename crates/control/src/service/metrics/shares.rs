//! Which engine does what share of the jobs, and why.

use super::{Labels, counter, family};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use testudo_gateway::{Reason, Share, Shares};

/// Where the order of engines decides, there are no lines.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, shares: Option<&Shares>) -> fmt::Result {
    let Some(shares) = shares else { return Ok(()) };
    let of_row = |share: &Share| -> Labels {
        let length = share.longest().map_or_else(|| "more".to_owned(), |longest| longest.to_string());
        vec![("suite", share.suite.to_string()), ("up_to_bytes", length), ("engine", share.engine.to_owned())]
    };
    let of = |share: &Share, reason: Reason| -> Labels {
        let mut labels = of_row(share);
        labels.push(("reason", reason.name().to_owned()));
        labels
    };
    let all = shares.rows.iter().flat_map(|share| {
        let counts = Reason::ALL.into_iter().zip(share.jobs).filter(|(_, jobs)| *jobs > 0);
        counts.map(move |(reason, jobs)| (of(share, reason), jobs))
    });
    family(encoder, "placement_jobs", "Jobs that engines were given, by reason", all)?;
    let passed_on = shares.rows.iter().filter(|share| share.total() > 0);
    let passed_on = passed_on.map(|share| (of_row(share), share.passed_on));
    family(encoder, "placement_passed_on", "Of these, jobs that went on to another engine", passed_on)?;
    let apart = u64::try_from(shares.apart.as_micros()).unwrap_or(u64::MAX);
    counter(
        encoder,
        "placement_apart_microseconds",
        "Time that workers did not have, in no expectation",
        apart,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;
    use std::time::Duration;
    use testudo_crypto::Suite;

    #[derive(Debug)]
    struct Only(Option<Shares>);

    impl Collector for Only {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            super::encode(&mut encoder, self.0.as_ref())
        }
    }

    fn page(shares: Option<Shares>) -> String {
        let (mut registry, mut page) = (Registry::default(), String::new());
        registry.register_collector(Box::new(Only(shares)));
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn jobs_are_counted_by_suite_length_engine_and_reason() {
        assert!(!page(None).contains("placement"));
        let share = |class, jobs| Share {
            suite: Suite::AES128GCM16,
            class,
            engine: "gpu",
            jobs,
            passed_on: 3,
            cost: None,
            expected: None,
            is_chosen: true,
            in_service: true,
        };
        let rows = vec![share(0, [0, 7, 0, 2, 0, 0, 0, 0]), share(6, [0, 1, 0, 0, 0, 0, 0, 0])];
        let apart = Duration::from_micros(12);
        let page = page(Some(Shares { rows, apart, bound: Duration::ZERO }));
        let labels = |length, reason| {
            format!("suite=\"aes128gcm16\",up_to_bytes=\"{length}\",engine=\"gpu\",reason=\"{reason}\"")
        };
        for line in [
            format!("placement_jobs_total{{{}}} 7", labels("64", "best")),
            format!("placement_jobs_total{{{}}} 2", labels("64", "late")),
            format!("placement_jobs_total{{{}}} 1", labels("more", "best")),
            "placement_passed_on_total{suite=\"aes128gcm16\",up_to_bytes=\"64\",engine=\"gpu\"} 3".to_owned(),
            "placement_apart_microseconds_total 12".to_owned(),
        ] {
            assert!(page.contains(&line), "no {line} in {page}");
        }
    }
}
