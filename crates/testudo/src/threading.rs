//! Which threads packets pass: the configured model, as far as the machine allows for it.

use testudo_control::config::Threading;
use testudo_control::service::threads::Threads;
use testudo_crypto::Engine;
use testudo_engine_device_thread::{DeviceThread, thread_name};
use testudo_gateway::{EngineReport, ThreadingModel};

/// The model in force: that of the configuration, if the device that needs it is there.
pub fn in_force(configured: &Threading, engines: &[EngineReport]) -> Threads {
    // Those in use are the engines that `apart` is given, under the same names.
    let devices = || engines.iter().filter(|report| Threading::is_device(&report.name));
    let used: Vec<_> = devices().filter(|report| report.in_use).map(|report| report.name.as_str()).collect();
    if !configured.model.has_device_thread() {
        return Threads { why: "configured".to_owned(), ..Threads::default() };
    }
    if used.is_empty() {
        let why: Vec<_> =
            devices().map(|report| format!("engine {}: {}", report.name, report.detail)).collect();
        let why = format!(
            "`{}` is configured, and no device is in use: {}",
            configured.model.name(),
            why.join("; ")
        );
        tracing::warn!("threading: {why}");
        return Threads { why, ..Threads::default() };
    }
    let devices = used.into_iter().map(thread_name).collect();
    Threads { model: configured.model, why: "configured".to_owned(), devices }
}

/// Has threads of their own drive the engines on devices, where the model has such threads.
pub fn apart(
    engines: Vec<Box<dyn Engine>>,
    configured: &Threading,
    model: ThreadingModel,
) -> Vec<Box<dyn Engine>> {
    if !model.has_device_thread() {
        return engines;
    }
    let processor = configured.processors.first().map(|number| usize::from(*number));
    let one = |engine: Box<dyn Engine>| -> Box<dyn Engine> {
        match Threading::is_device(engine.name()) {
            true => Box::new(DeviceThread::over(engine, processor)),
            false => engine,
        }
    };
    engines.into_iter().map(one).collect()
}

/// The processor of the transmit thread.
pub fn transmit_processor(configured: &Threading) -> Option<usize> {
    configured.processors.get(1).map(|number| usize::from(*number))
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

    #[test]
    fn a_model_with_a_device_thread_is_in_force_where_the_device_is() {
        let one = Threading { model: ThreadingModel::OneIo, processors: vec![3] };
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
        let one = Threading { model: ThreadingModel::OneIo, processors: Vec::new() };
        let names = ["cryptodev (crypto_aesni_mb0)", "gpu", "cryptodevice", "vaes", "portable"];
        let engines = names.map(|name| Box::new(Named(name, PortableEngine::new())) as Box<dyn Engine>);
        let threads = in_force(&one, &names.map(|name| report(name, true)));
        let engines = apart(engines.into(), &one, threads.model);
        let wrapped = engines.iter().filter(|engine| engine.description().contains("device thread"));
        assert!(wrapped.map(|engine| thread_name(engine.name())).eq(threads.devices.iter().cloned()));
        assert_eq!(threads.devices, ["device-cryptodev", "device-gpu"]);
    }

    #[test]
    fn engines_without_a_device_stay_with_the_worker() {
        let engines: Vec<Box<dyn Engine>> = vec![Box::new(PortableEngine::new())];
        let engines = apart(engines, &Threading::default(), ThreadingModel::TwoIo);
        assert!(!engines[0].description().contains("device thread"));
        let two = Threading { model: ThreadingModel::TwoIo, processors: vec![1, 5] };
        assert_eq!((transmit_processor(&two), transmit_processor(&Threading::default())), (Some(5), None));
    }
}
