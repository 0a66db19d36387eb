//! Leads packets to the first so many workers: the queues of all interfaces and the sockets of all endpoints
//! together.

use testudo_control::Configuration;
use testudo_control::processors::Processors;
use testudo_port_socket::SocketQueues;
use testudo_port_tun::TunQueues;

/// What steers packets to queues; in the kernel it stays as long as they do.
#[derive(Default)]
pub struct QueueSets {
    pub tuns: Vec<TunQueues>,
    /// Of the unprotected side, if that has several.
    pub sockets: Option<SocketQueues>,
}

/// Changes how many workers get packets.
pub struct Spread {
    sets: QueueSets,
    running: u32,
}

impl Spread {
    /// Leads all packets to the first `workers`: datagrams first, since what they carry may still be sent to
    /// hosts. If one set refuses, the others are as before.
    ///
    /// # Errors
    /// Why, in words.
    pub fn over(&mut self, workers: usize) -> Result<(), String> {
        let (wanted, before) = (u32::try_from(workers).unwrap_or(u32::MAX), self.running);
        if let Some(sockets) = &mut self.sets.sockets {
            sockets.spread(wanted).map_err(|error| error.to_string())?;
        }
        for done in 0..self.sets.tuns.len() {
            let outcome = self.sets.tuns[done].spread(wanted).map_err(|error| error.to_string());
            if let Err(why) = outcome {
                // What was possible is so again, but for a lack of memory: then packets go to more workers
                // than are wanted, which take them.
                let tuns = self.sets.tuns.iter_mut().take(done);
                tuns.for_each(|tun| drop(tun.spread(before)));
                self.sets.sockets.as_mut().map(|sockets| sockets.spread(before));
                return Err(why);
            }
        }
        self.running = wanted;
        Ok(())
    }
}

/// What leads packets of all that were opened for so many workers, or why nothing does, and how many get
/// packets: as many as the configuration says, or all.
pub fn start(
    configuration: &Configuration,
    sets: QueueSets,
    workers: usize,
) -> (Result<Spread, String>, usize) {
    let of_gateway = configuration.gateway.workers;
    if !of_gateway.may_change() {
        return (Err("workers with roles are as many as there are until a restart".to_owned()), workers);
    }
    if sets.sockets.is_none() {
        return (Err("this gateway was started for one worker: see `workers_max`".to_owned()), workers);
    }
    if let Some(why) = sets.tuns.iter().find_map(TunQueues::steering_refused) {
        return (Err(why.to_owned()), workers);
    }
    let mut spread = Spread { sets, running: u32::try_from(workers).unwrap_or(u32::MAX) };
    let wanted = of_gateway.count(Processors::of_this_process().count()).min(workers);
    match spread.over(wanted) {
        Ok(()) => (Ok(spread), wanted),
        Err(why) => (Err(why), workers),
    }
}
