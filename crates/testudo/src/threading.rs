//! Which threads packets pass: the configured model, as far as the machine allows for it.

use std::sync::Arc;
use testudo_control::config::{Configuration, Threading};
use testudo_control::processors::Processors;
use testudo_control::service::threads::Threads;
use testudo_control::service::worker_threads::ChosenFrom;
use testudo_crypto::Engine;
use testudo_engine_device_thread::{DeviceThread, thread_name};
use testudo_gateway::{EngineReport, ThreadingModel};
use testudo_packet::Aside;

/// What the machine and the rest of the configuration leave room for.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Processors that this process may use.
    pub processors: usize,
    /// Workers.
    pub workers: usize,
    /// Whether a thread beside the worker can send by the ports on both sides.
    pub has_senders: bool,
}

impl Room {
    /// That of this process.
    pub fn of(configuration: &Configuration) -> Self {
        let processors = Processors::of_this_process().count();
        let gateway = &configuration.gateway;
        let has_senders = configuration.protected.kind.is_host() && configuration.unprotected.kind.is_host();
        Self { processors, workers: gateway.workers.most(gateway.workers_max, processors), has_senders }
    }

    /// The model with the most threads that there is room for, and why there is not for more.
    fn most(&self) -> (ThreadingModel, String) {
        let (alone, one, two) =
            (ThreadingModel::RunToCompletion, ThreadingModel::OneIo, ThreadingModel::TwoIo);
        let (model, why) = match self {
            Self { workers: 2.., .. } => return (alone, "several workers run to completion".to_owned()),
            Self { processors: 0 | 1, .. } => (alone, "1 processor"),
            Self { has_senders: false, .. } => (one, "a queue of AF_XDP or DPDK is one thread's"),
            Self { processors: 2, .. } => (one, "2 processors"),
            Self { .. } => return (two, String::new()),
        };
        (model, format!("at most {}: {why}", model.name()))
    }
}

/// The threads of a gateway.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is told of them.
    pub threads: Threads,
    /// If the scheduler chooses: the model with the most of them.
    pub most: Option<ThreadingModel>,
}

impl Plan {
    /// Whether there may be a transmit thread.
    pub fn transmits(&self) -> bool {
        self.most.unwrap_or(self.threads.model) == ThreadingModel::TwoIo
    }
}

/// The model in force: that of the configuration, if the device that needs it is there. Or from which the
/// scheduler chooses.
pub fn plan(configured: &Threading, engines: &[EngineReport], room: Room) -> Plan {
    // Those in use are the engines that `apart` is given, under the same names.
    let devices = || engines.iter().filter(|report| Threading::is_device(&report.name));
    let used: Vec<_> = devices().filter(|report| report.in_use).map(|report| report.name.as_str()).collect();
    let alone = |why| Plan { threads: Threads { why, ..Threads::default() }, most: None };
    if !configured.may_have_device_thread() {
        return alone("configured".to_owned());
    }
    let name = configured.model.map_or("auto", ThreadingModel::name);
    if used.is_empty() {
        let why: Vec<_> =
            devices().map(|report| format!("engine {}: {}", report.name, report.detail)).collect();
        if configured.model.is_none() && why.is_empty() {
            return alone("auto: no engine is on a device".to_owned());
        }
        let why = format!("`{name}` is configured, and no device is in use: {}", why.join("; "));
        tracing::warn!("threading: {why}");
        return alone(why);
    }
    let devices = used.into_iter().map(thread_name).collect();
    match configured.model {
        Some(model) => Plan { threads: Threads { model, why: "configured".to_owned(), devices }, most: None },
        None => match room.most() {
            (ThreadingModel::RunToCompletion, why) => alone(format!("auto: {why}")),
            (most, why) => Plan { threads: Threads { why, devices, ..Threads::default() }, most: Some(most) },
        },
    }
}

/// Has threads of their own drive the engines on devices, where the plan has such threads, each on the
/// processor that `named`, the engines of the configuration, give it; or the worker and threads in turn,
/// where it may have them. Returns what chooses in that case.
pub fn apart(
    engines: Vec<Box<dyn Engine>>,
    (configured, named): (&Threading, &[String]),
    plan: &Plan,
) -> (Vec<Box<dyn Engine>>, Option<ChosenFrom>) {
    if !plan.threads.model.has_device_thread() && plan.most.is_none() {
        return (engines, None);
    }
    let mut devices = Vec::new();
    let one = |engine: Box<dyn Engine>| -> Box<dyn Engine> {
        if !Threading::is_device(engine.name()) {
            return engine;
        }
        let processor = configured.processor_of_device(named, engine.name());
        if plan.most.is_none() {
            return Box::new(DeviceThread::over(engine, processor));
        }
        let aside = Arc::<Aside>::default();
        devices.push(Arc::clone(&aside));
        Box::new(DeviceThread::by_choice(engine, processor, aside))
    };
    let engines = engines.into_iter().map(one).collect();
    (engines, plan.most.map(|most| ChosenFrom { devices, most }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::{
        Capability, Direction, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Suite,
    };

    fn report(name: &str, in_use: bool) -> EngineReport {
        EngineReport { name: name.to_owned(), in_use, detail: "told".to_owned(), suites: Vec::new() }
    }

    const ROOM: Room = Room { processors: 4, workers: 1, has_senders: true };

    fn of(model: Option<ThreadingModel>) -> Threading {
        Threading { model, processors: vec![3] }
    }

    fn in_force(configured: &Threading, reports: &[EngineReport]) -> Threads {
        plan(configured, reports, ROOM).threads
    }

    #[test]
    fn a_model_with_a_device_thread_is_in_force_where_the_device_is() {
        let one = of(Some(ThreadingModel::OneIo));
        let threads = in_force(&one, &[report("gpu", true), report("portable", true)]);
        assert_eq!((threads.model, threads.devices), (ThreadingModel::OneIo, vec!["device-gpu".to_owned()]));
        let threads = in_force(&one, &[report("vaes", true), report("gpu", false)]);
        assert_eq!(threads.model, ThreadingModel::RunToCompletion);
        assert_eq!(threads.why, "`one_io` is configured, and no device is in use: engine gpu: told");
        assert!(threads.devices.is_empty());
        let threads = in_force(&Threading::default(), &[report("gpu", true)]);
        assert_eq!((threads.model, threads.why.as_str()), (ThreadingModel::RunToCompletion, "configured"));
        let threads = in_force(&one, &[report("cryptodev (crypto_aesni_mb)", true)]);
        assert_eq!(threads.devices, ["device-cryptodev"]);
    }

    #[test]
    fn threads_are_chosen_among_those_that_there_is_room_for() {
        let planned = |room, engines: &[EngineReport]| {
            let plan = plan(&of(None), engines, room);
            assert_eq!(plan.threads.model, ThreadingModel::RunToCompletion, "it begins with that");
            let transmits = plan.transmits();
            (plan.most, plan.threads.why, transmits)
        };
        let (one, two) = (Some(ThreadingModel::OneIo), Some(ThreadingModel::TwoIo));
        let gpu = [report("gpu", true), report("portable", true)];
        let rows = [
            (ROOM, two, "", true),
            (Room { processors: 3, ..ROOM }, two, "", true),
            (Room { processors: 2, ..ROOM }, one, "at most one_io: 2 processors", false),
            (
                Room { has_senders: false, ..ROOM },
                one,
                "at most one_io: a queue of AF_XDP or DPDK is one thread's",
                false,
            ),
            (Room { processors: 1, ..ROOM }, None, "auto: at most run_to_completion: 1 processor", false),
            (Room { workers: 2, ..ROOM }, None, "auto: several workers run to completion", false),
        ];
        for (room, most, why, transmits) in rows {
            assert_eq!(planned(room, &gpu), (most, why.to_owned(), transmits), "{room:?}");
        }
        let none = (None, "auto: no engine is on a device".to_owned(), false);
        assert_eq!(planned(ROOM, &[report("vaes", true)]), none);
        let why = "`auto` is configured, and no device is in use: engine gpu: told".to_owned();
        assert_eq!(planned(ROOM, &[report("vaes", true), report("gpu", false)]), (None, why, false));
    }

    /// The portable engine under another name.
    struct Named(&'static str, PortableEngine);

    impl Engine for Named {
        fn name(&self) -> &'static str {
            self.0
        }
        fn description(&self) -> String {
            self.1.description()
        }
        fn capability(&self, suite: Suite) -> Option<Capability> {
            self.1.capability(suite)
        }
        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.1.install(key, direction)
        }
        fn remove(&mut self, key: KeyId) {
            self.1.remove(key);
        }
        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            self.1.submit(jobs)
        }
    }

    #[test]
    fn status_names_the_device_threads_that_there_are() {
        let one = Threading { model: Some(ThreadingModel::OneIo), processors: Vec::new() };
        let names = ["cryptodev (crypto_aesni_mb0)", "gpu", "cryptodevice", "vaes", "portable"];
        let engines = names.map(|name| Box::new(Named(name, PortableEngine::new())) as Box<dyn Engine>);
        let plan = plan(&one, &names.map(|name| report(name, true)), ROOM);
        let (engines, chosen) = apart(engines.into(), (&one, &[]), &plan);
        assert!(chosen.is_none());
        let threads = plan.threads;
        let wrapped = engines.iter().filter(|engine| engine.description().contains("device thread"));
        assert!(wrapped.map(|engine| thread_name(engine.name())).eq(threads.devices.iter().cloned()));
        assert_eq!(threads.devices, ["device-cryptodev", "device-gpu"]);
    }

    #[test]
    fn engines_without_a_device_stay_with_the_worker() {
        let engines: Vec<Box<dyn Engine>> = vec![Box::new(PortableEngine::new())];
        let plan = Plan { threads: Threads::default(), most: Some(ThreadingModel::TwoIo) };
        let (engines, chosen) = apart(engines, (&Threading::default(), &[]), &plan);
        assert!(!engines[0].description().contains("device thread"));
        assert!(chosen.is_some_and(|chosen| chosen.devices.is_empty()));
        let two = Threading { model: Some(ThreadingModel::TwoIo), processors: vec![1, 5] };
        let of_transmit = |threading: Threading| threading.processor_of_transmit(&[]);
        assert_eq!((of_transmit(two), of_transmit(Threading::default())), (Some(5), None));
    }
}
