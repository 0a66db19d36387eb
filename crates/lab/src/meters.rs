//! Meters of energy that this machine has: RAPL of its processors and their memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::harness::{EnergySample, Meter, NotKnown};

const POWERCAP: &str = "/sys/class/powercap";
const PROCESSORS: &str = "processors (RAPL)";

/// The meters of this machine; that of processors is always among them, and says why where it
/// has no figure.
#[must_use]
pub fn of_this_machine() -> Vec<Box<dyn Meter>> {
    vec![rapl(Path::new(POWERCAP))]
}

/// The energy counters below `folder` of whole packages, and of the memory beside them.
fn rapl(folder: &Path) -> Box<dyn Meter> {
    match zones(folder) {
        Ok(zones) => Box::new(Rapl { zones, begun: Instant::now() }),
        Err(why) => Box::new(Absent(why)),
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
    begun: Instant,
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
        Ok(EnergySample { at: self.begun.elapsed(), microjoules })
    }
}

/// No meter, and why.
struct Absent(NotKnown);

impl Meter for Absent {
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

    fn zone(folder: &Path, entry: &str, name: &str, energy: &str) {
        let path = folder.join(entry);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("name"), format!("{name}\n")).unwrap();
        fs::write(path.join("energy_uj"), energy).unwrap();
        fs::write(path.join("max_energy_range_uj"), "262143328850\n").unwrap();
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
        let mut meter = rapl(at);
        assert_eq!(meter.sample().unwrap().microjoules, [100, 5]);
        assert_eq!(meter.ranges(), [Some(262_143_328_850); 2]);
        // A counter that is no number, and one that is there no more.
        fs::write(at.join("intel-rapl:0/energy_uj"), "none\n").unwrap();
        assert!(meter.sample().is_err());
        fs::remove_file(at.join("intel-rapl:0/energy_uj")).unwrap();
        assert!(meter.sample().is_err());
    }

    #[test]
    fn a_machine_without_rapl_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = rapl(folder.path()).sample().unwrap_err();
        assert!(error.to_string().starts_with("this machine has no RAPL"), "{error}");
        assert!(rapl(&folder.path().join("absent")).sample().is_err());
    }
}
