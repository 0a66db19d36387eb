//! Which threads are chosen by what is measured, and the rates that decide.

use super::{counter, gauge};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use testudo_gateway::{ChosenThreads, ThreadingModel};

/// Where the model is configured there is no line. Rates come with the first load.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, chosen: Option<ChosenThreads>) -> fmt::Result {
    let Some(chosen) = chosen else { return Ok(()) };
    let device = u64::from(chosen.model.has_device_thread());
    let transmit = u64::from(chosen.model == ThreadingModel::TwoIo);
    gauge(encoder, "threading_device_thread", "1 while a thread of its own drives the device", device)?;
    gauge(encoder, "threading_transmit_thread", "1 while a thread of its own transmits", transmit)?;
    counter(encoder, "threading_changes", "Changes of the threading model", chosen.changes)?;
    let Some(rates) = chosen.rates else { return Ok(()) };
    for (name, help, rate) in [
        ("threading_io_pps", "Packets a second that one thread could receive and send", rates.io),
        ("threading_io_and_driving_pps", "The same by a thread that drives the device as well", rates.alone),
        ("threading_cryptography_pps", "Packets a second that the device could do", rates.cryptography),
    ] {
        gauge(encoder, name, help, rate)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;
    use testudo_gateway::ThreadRates;

    #[derive(Debug)]
    struct Only(Option<ChosenThreads>);

    impl Collector for Only {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            super::encode(&mut encoder, self.0)
        }
    }

    fn page(chosen: Option<ChosenThreads>) -> String {
        let (mut registry, mut page) = (Registry::default(), String::new());
        registry.register_collector(Box::new(Only(chosen)));
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn a_model_that_was_chosen_is_there_with_its_rates_and_a_configured_one_is_not() {
        assert!(!page(None).contains("threading"));
        let [model, most] = [ThreadingModel::OneIo, ThreadingModel::TwoIo];
        let rates = ThreadRates { io: 31, alone: 26, cryptography: 94 };
        let chosen = ChosenThreads { model, most, rates: None, changes: 3 };
        assert!(!page(Some(chosen)).contains("_pps"));
        let page = page(Some(ChosenThreads { rates: Some(rates), ..chosen }));
        for line in [
            "threading_device_thread 1",
            "threading_transmit_thread 0",
            "threading_changes_total 3",
            "threading_io_pps 31",
            "threading_io_and_driving_pps 26",
            "threading_cryptography_pps 94",
        ] {
            assert!(page.contains(line), "no {line} in {page}");
        }
    }
}
