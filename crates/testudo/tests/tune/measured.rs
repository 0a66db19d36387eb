//! Streams before and after, over the cable.

use crate::site::{INTERFACE, ONLY, Site};
use crate::support::gateway::PROGRAM;
use crate::support::{Outcome, ensure, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use testudo_judge::harness::{Suite, TestResult};

pub fn tests(suite: Suite<'_, Site>) -> Suite<'_, Site> {
    suite
        .test("apply_measures_streams_through_the_interface_before_and_after", measures)
        .test("without_a_sink_nothing_is_applied", applies_nothing_without_a_sink)
}

/// A sink at the far end, which ends with the test, and its address.
struct Sink(Child, String);

impl Sink {
    fn start(site: &Site) -> Outcome<Self> {
        let mut command = site.there.command(PROGRAM);
        command.args(["tune", "sink", "10.9.0.2:0"]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let address = line.split_whitespace().nth(3).map(|word| word.trim_end_matches(':').to_owned());
        Ok(Self(child, address.ok_or("the sink says no address")?))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measures(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    let sink = Sink::start(site)?;
    let measured = ["--measure", &sink.1, "--measure-seconds", "0.1"];
    let words = [&["apply", INTERFACE][..], &ONLY, &measured].concat();
    let said = wait::output(site.command(&words).arg("--json"))?;
    ensure(said.status.success(), || String::from_utf8_lossy(&said.stderr).into_owned())?;
    let report: Value = serde_json::from_slice(&said.stdout)?;
    for way in ["sent", "received"] {
        let measurement = &report["measurement"][way];
        for when in ["before", "after"] {
            let streams = &measurement[when];
            let number = |name: &str| streams[name].as_f64().unwrap_or(-1.0);
            assert_eq!(streams["gbit_s"].as_array().map_or(0, Vec::len), 5, "{way}: {measurement}");
            let (least, median, most) = (number("least"), number("median"), number("most"));
            assert!(least > 0.0 && least <= median && median <= most, "{way}: {measurement}");
        }
        let verdicts = ["faster", "slower", "no-difference-beyond-the-spread"];
        assert!(verdicts.iter().any(|verdict| measurement["verdict"] == *verdict), "{way}: {measurement}");
    }
    // All is as wanted, so that there is nothing to compare.
    let again = site.says(&words)?;
    assert!(again.stdout.contains("after   not measured: there is nothing to compare"), "{again:#?}");
    site.undo_to(&before, "after a measurement")?;
    // Streams to oneself do not leave by the cable, so they measure nothing of it.
    let own = site.here.within(|| std::net::TcpListener::bind("10.9.0.1:0"))??;
    let (to, listener) = (own.local_addr()?.to_string(), own);
    std::thread::spawn(move || testudo_tune::measure::sink(&listener));
    let words = [&["apply", INTERFACE, "--measure", &to, "--measure-seconds", "0.1"][..], &ONLY].concat();
    site.says(&words)?.refused(1, "name an address behind that interface")?;
    crate::site::same(&before, &site.everything()?, "a measurement that is none")?;
    Ok(())
}

fn applies_nothing_without_a_sink(site: &mut Site) -> TestResult {
    let before = site.everything()?;
    let words = [&["apply", INTERFACE, "--measure", "10.9.0.2:9"][..], &ONLY].concat();
    site.says(&words)?.refused(1, "measurement: a stream to 10.9.0.2:9")?;
    crate::site::same(&before, &site.everything()?, "no sink")?;
    Ok(())
}
