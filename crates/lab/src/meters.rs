//! Meters of energy that this machine has: RAPL of its processors and their memory, and those that a program
//! opens for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::harness::{EnergySample, Meter, NotKnown};

const POWERCAP: &str = "/sys/class/powercap";
const PROCESSORS: &str = "processors (RAPL)";

/// What can be metered on a machine, and what it has not.
pub struct Meters {
    pub(crate) present: Vec<Box<dyn Meter>>,
    /// What there is none of, and how that was found out: no part of the sum.
    pub(crate) absent: Vec<(String, NotKnown)>,
}

impl Meters {
    /// RAPL of this machine. Its processors take power whether it can be metered or not: without a figure of
    /// theirs there is no sum.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let begun = Instant::now();
        Self {
            present: vec![rapl(Path::new(POWERCAP), Box::new(move || begun.elapsed()))],
            absent: Vec::new(),
        }
    }

    /// These and one more; or, of what this machine has none, why that is known.
    #[must_use]
    pub fn with(mut self, name: &str, meter: Result<Box<dyn Meter>, NotKnown>) -> Self {
        match meter {
            Ok(meter) => self.present.push(meter),
            Err(why) => self.absent.push((name.to_owned(), why)),
        }
        self
    }
}

/// The time since some moment.
type Clock = Box<dyn Fn() -> Duration>;

/// The energy counters below `folder` of whole packages, and of the memory beside them.
fn rapl(folder: &Path, clock: Clock) -> Box<dyn Meter> {
    match zones(folder) {
        Ok(zones) => Box::new(Rapl { zones, clock }),
        Err(why) => Box::new(Unread(why)),
    }
}

/// Zones of `folder` that are parts of no other zone that is counted.
fn zones(folder: &Path) -> Result<Vec<Zone>, NotKnown> {
    let entries = fs::read_dir(folder)
        .map_err(|error| NotKnown(format!("this machine has no RAPL: {}: {error}", folder.display())))?;
    let mut zones = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        // Those of intel-rapl-mmio are the same packages once more.
        let is_zone = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("intel-rapl:"));
        let name = fs::read_to_string(path.join("name")).unwrap_or_default();
        if is_zone && (name.starts_with("package") || name.trim() == "dram") {
            let range = fs::read_to_string(path.join("max_energy_range_uj")).ok();
            let range = range.and_then(|text| text.trim().parse().ok());
            zones.push(Zone { path: path.join("energy_uj"), range });
        }
    }
    zones.sort_by(|a, b| a.path.cmp(&b.path));
    if zones.is_empty() {
        return Err(NotKnown(format!("this machine has no RAPL: {} has no package", folder.display())));
    }
    // Counters of most systems are for the superuser alone: better known before than after.
    zones.iter().try_for_each(|zone| zone.read().map(drop))?;
    Ok(zones)
}

struct Zone {
    path: PathBuf,
    range: Option<u64>,
}

impl Zone {
    fn read(&self) -> Result<u64, NotKnown> {
        let path = self.path.display();
        let text = fs::read_to_string(&self.path).map_err(|error| NotKnown(format!("{path}: {error}")))?;
        text.trim().parse().map_err(|_| NotKnown(format!("{path}: \"{}\" is no energy", text.trim())))
    }
}

struct Rapl {
    zones: Vec<Zone>,
    clock: Clock,
}

impl Meter for Rapl {
    fn name(&self) -> &str {
        PROCESSORS
    }

    fn ranges(&self) -> Vec<Option<u64>> {
        self.zones.iter().map(|zone| zone.range).collect()
    }

    fn sample(&mut self) -> Result<EnergySample, NotKnown> {
        let microjoules = self.zones.iter().map(Zone::read).collect::<Result<_, _>>()?;
        Ok(EnergySample { at: (self.clock)(), microjoules })
    }
}

/// Processors without a meter that may be read, and why.
struct Unread(NotKnown);

impl Meter for Unread {
    fn name(&self) -> &str {
        PROCESSORS
    }

    fn ranges(&self) -> Vec<Option<u64>> {
        Vec::new()
    }

    fn sample(&mut self) -> Result<EnergySample, NotKnown> {
        Err(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Power;
    use std::cell::Cell;

    /// The highest value of a counter.
    const RANGE: u64 = 262_143_328_850;

    fn zone(folder: &Path, entry: &str, name: &str, energy: &str) {
        let path = folder.join(entry);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("name"), format!("{name}\n")).unwrap();
        fs::write(path.join("energy_uj"), energy).unwrap();
        fs::write(path.join("max_energy_range_uj"), format!("{RANGE}\n")).unwrap();
    }

    /// Two seconds later at each look.
    fn clock() -> Clock {
        let looks = Cell::new(0);
        Box::new(move || {
            looks.set(looks.get() + 1);
            Duration::from_secs(2 * looks.get())
        })
    }

    #[test]
    fn packages_and_memory_are_read_and_their_parts_are_not_counted_twice() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        zone(at, "intel-rapl:0", "package-0", "100\n");
        zone(at, "intel-rapl:0:0", "core", "70\n");
        zone(at, "intel-rapl:0:1", "dram", "5\n");
        zone(at, "intel-rapl:1", "psys", "900\n");
        zone(at, "intel-rapl-mmio:0", "package-0", "100\n");
        let mut meter = rapl(at, clock());
        assert_eq!(meter.sample().unwrap().microjoules, [100, 5]);
        assert_eq!(meter.ranges(), [Some(RANGE); 2]);
    }

    #[test]
    fn a_counter_in_a_file_that_wraps_goes_on_and_one_that_is_gone_has_no_figure() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        zone(at, "intel-rapl:0", "package-0", &format!("{}\n", RANGE - 40_000_000));
        zone(at, "intel-rapl:0:1", "dram", "1000000\n");
        let energy = |entry: &str| at.join(entry).join("energy_uj");
        let mut meters = [rapl(at, clock())];
        let mut watts = |work: &dyn Fn()| Power::of(&mut meters, work).1.total();
        // 100 J of the package, over its end, and 6 J of memory, in 2 s.
        let wrapped = watts(&|| {
            fs::write(energy("intel-rapl:0"), "60000000\n").unwrap();
            fs::write(energy("intel-rapl:0:1"), "7000000\n").unwrap();
        });
        assert_eq!(wrapped, Ok(53.0));
        let stuck = watts(&|| ()).unwrap_err().to_string();
        assert!(stuck.ends_with("the meter did not move in the time of a trial"), "{stuck}");
        let no_number = watts(&|| fs::write(energy("intel-rapl:0:1"), "none\n").unwrap());
        assert!(no_number.unwrap_err().to_string().ends_with("\"none\" is no energy"));
        fs::write(energy("intel-rapl:0:1"), "8000000\n").unwrap();
        let gone = watts(&|| fs::remove_file(energy("intel-rapl:0")).unwrap());
        assert!(gone.unwrap_err().to_string().contains("intel-rapl:0/energy_uj"));
        assert!(watts(&|| ()).is_err());
    }

    #[test]
    fn a_machine_without_rapl_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = rapl(folder.path(), clock()).sample().unwrap_err();
        assert!(error.to_string().starts_with("this machine has no RAPL"), "{error}");
        assert!(rapl(&folder.path().join("absent"), clock()).sample().is_err());
    }

    #[test]
    fn what_a_machine_has_none_of_is_no_part_of_the_sum() {
        let meters = Meters::of_this_machine().with("other", Err(NotKnown("there is none".to_owned())));
        assert_eq!((meters.present.len(), meters.absent.len()), (1, 1));
        let meters = meters.with("more", Ok(Box::new(Unread(NotKnown("no".to_owned())))));
        assert_eq!((meters.present.len(), meters.absent.len()), (2, 1));
    }
}
