//! How many workers get packets, while the gateway runs.
//!
//! ```text
//!   workers_max = 4     worker 0   worker 1   worker 2   worker 3
//!   workers set 2       ▲ flows    ▲ flows    parked     parked
//! ```
//!
//! All workers that there may be run from the start, and each has every tunnel, SA and policy. A worker could
//! not be given an SA later: keys are in engines alone, and what workers share of an SA is made with it. So a
//! worker comes when packets are led to its queues. It goes when they are led past them: it sends what it
//! has, hands its sequence numbers over with that, and is *parked*. It sleeps then, takes commands, and keeps
//! its counters.

use crate::config::Configuration;
use crate::processors::Processors;
use serde_json::{Value, json};
use std::time::Duration;
use testudo_gateway::{AllCounters, Commander};

/// How long workers that go may take to send what they have.
const PATIENCE: Duration = Duration::from_secs(2);
/// The request of a client to change the number.
pub(super) const SET: &str = "workers-set";

/// Leads all packets to the first so many workers; says why it could not, and has changed nothing then.
pub type Spreader = Box<dyn FnMut(usize) -> Result<(), String>>;

/// The workers that get packets, and what changes that.
pub struct WorkerCount {
    /// Or why there is none, in words for the user.
    spread: Result<Spreader, String>,
    running: usize,
    most: usize,
}

impl WorkerCount {
    /// So many of `most` get packets, which `spread` leads.
    #[must_use]
    pub fn new(running: usize, most: usize, spread: Result<Spreader, String>) -> Self {
        Self { spread, running, most }
    }

    /// Notes in the counters which workers are parked.
    pub(super) fn note(&self, counters: &AllCounters) {
        counters.each().enumerate().for_each(|(number, of)| of.set_parked(number >= self.running));
    }

    /// Has what a client asks for done.
    pub(super) fn change(
        &mut self,
        request: &Value,
        commander: &Commander,
        counters: &AllCounters,
    ) -> Result<Value, String> {
        let wanted = request["workers"].as_u64().ok_or("workers: expected a number")?;
        self.set(usize::try_from(wanted).unwrap_or(usize::MAX), commander, counters)
    }

    /// Has so many workers get packets, and waits until the others have sent what they had.
    pub(super) fn set(
        &mut self,
        wanted: usize,
        commander: &Commander,
        counters: &AllCounters,
    ) -> Result<Value, String> {
        let (before, most) = (self.running, self.most);
        if !(1..=most).contains(&wanted) {
            return Err(format!(
                "this gateway has 1 to {most} workers: for more, set `workers_max` in [gateway] and restart it"
            ));
        }
        let spread = self.spread.as_mut().map_err(|why| why.clone())?;
        if wanted != before {
            spread(wanted)?;
            self.running = wanted;
            self.note(counters);
        }
        // Packets are led elsewhere, no matter what it says.
        let are_settled = commander.settle(wanted, PATIENCE).unwrap_or(false);
        let said = format!("{wanted} of {most} workers get packets, {before} did before");
        tracing::info!("{said}");
        let warning = "a worker that was taken away still has packets to send";
        Ok(json!({
            "said": said, "workers": wanted, "before": before, "most": most,
            "warning": (!are_settled).then_some(warning),
        }))
    }

    /// How many workers a new configuration has, if that is not what the file said before.
    ///
    /// # Errors
    /// Why that needs a restart.
    pub(super) fn of_reload(
        &self,
        old: &Configuration,
        new: &Configuration,
    ) -> Result<Option<usize>, String> {
        if old.gateway.workers == new.gateway.workers {
            return Ok(None);
        }
        if !old.gateway.workers.may_change() || !new.gateway.workers.may_change() {
            return Err("`workers` has other roles: that needs a restart".to_owned());
        }
        if let Err(why) = &self.spread {
            return Err(format!("`workers` changed: that needs a restart, as {why}"));
        }
        let wanted = new.gateway.workers.count(Processors::of_this_process().count());
        if wanted > self.most {
            return Err(format!(
                "`workers` is {wanted} now, and this gateway was started for {}: that needs a restart",
                self.most
            ));
        }
        Ok(Some(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use testudo_gateway::{Inbox, PortPair, SystemClock, Worker, serve};
    use testudo_packet::Pool;
    use testudo_port_memory::MemoryPort;

    fn worker() -> Worker {
        let (protected, unprotected) = MemoryPort::pair(1);
        let ports = PortPair { protected: Box::new(protected), unprotected: Box::new(unprotected) };
        Worker::new(ports, Pool::new(1, 2048), Vec::new(), Box::default())
    }

    /// Three workers, of which two get packets, and the numbers that they were spread over since.
    fn with_three<R>(
        refuses: bool,
        work: impl FnOnce(&mut WorkerCount, &Commander, &AllCounters) -> R,
    ) -> (R, Vec<usize>) {
        let workers: Vec<_> = (0..3).map(|_| worker()).collect();
        let counters = AllCounters::of(workers.iter().map(Worker::counters));
        let (commander, inboxes) = Commander::channels(3).unwrap();
        let start = |(mut worker, inbox): (Worker, Inbox)| {
            std::thread::spawn(move || {
                serve(&mut worker, &inbox, &SystemClock::default(), &mut |_| {}).unwrap();
            })
        };
        let threads: Vec<_> = workers.into_iter().zip(inboxes).map(start).collect();
        let spread = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&spread);
        let spreader: Spreader = Box::new(move |workers| {
            if refuses {
                return Err("the kernel refuses".to_owned());
            }
            noted.borrow_mut().push(workers);
            Ok(())
        });
        let mut count = WorkerCount::new(2, 3, Ok(spreader));
        count.note(&counters);
        let result = work(&mut count, &commander, &counters);
        commander.stop().unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let spread = spread.borrow().clone();
        (result, spread)
    }

    fn parked(counters: &AllCounters) -> Vec<bool> {
        counters.each().map(testudo_gateway::WorkerCounters::is_parked).collect()
    }

    #[test]
    fn workers_come_and_go_within_the_most_and_are_noted_as_parked() {
        let ((), spread) = with_three(false, |count, commander, counters| {
            assert_eq!(parked(counters), [false, false, true]);
            let mut set = |wanted| count.set(wanted, commander, counters);
            let answer = set(1).unwrap();
            assert_eq!(
                (&answer["workers"], &answer["before"], &answer["warning"]),
                (&json!(1), &json!(2), &Value::Null)
            );
            assert_eq!(parked(counters), [false, true, true]);
            set(3).unwrap();
            assert_eq!(parked(counters), [false; 3]);
            set(3).unwrap();
            for wrong in [0, 4, usize::MAX] {
                assert!(set(wrong).unwrap_err().contains("1 to 3 workers"), "{wrong}");
            }
            let request = json!({ "verb": SET, "workers": "many" });
            assert!(count.change(&request, commander, counters).is_err());
        });
        assert_eq!(spread, [1, 3], "nothing moves where nothing changes");
    }

    #[test]
    fn what_the_kernel_refuses_changes_nothing() {
        with_three(true, |count, commander, counters| {
            assert_eq!(count.set(1, commander, counters).unwrap_err(), "the kernel refuses");
            assert_eq!(parked(counters), [false, false, true]);
        });
    }

    #[test]
    fn a_reload_changes_the_number_where_the_file_does_and_says_what_needs_a_restart() {
        let of = |workers: &str| {
            let text = format!(
                "[gateway]\nstate = \"s\"\nworkers = {workers}\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n\
                 [port.unprotected]\nkind = \"socket\"\ninterface = \"eth0\"\n[[policy]]\naction = \"discard\"\n"
            );
            Configuration::parse(&text, "t.toml").unwrap()
        };
        let count = WorkerCount::new(1, 3, Ok(Box::new(|_| Ok(()))));
        let change = |old: &str, new: &str| count.of_reload(&of(old), &of(new));
        assert_eq!(change("2", "2"), Ok(None), "what was set at run time stays");
        assert_eq!(change("2", "3"), Ok(Some(3)));
        assert!(change("2", "4").unwrap_err().contains("was started for 3"));
        assert!(change("2", "[\"encrypt\", \"decrypt\"]").unwrap_err().contains("restart"));
        assert!(change("[\"encrypt\", \"decrypt\"]", "2").unwrap_err().contains("restart"));
        let alone = WorkerCount::new(1, 1, Err("it has one port".to_owned()));
        assert!(alone.of_reload(&of("1"), &of("2")).unwrap_err().contains("it has one port"));
    }
}
