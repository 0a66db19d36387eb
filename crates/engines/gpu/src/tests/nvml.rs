//! Counters of energy, over a twin of NVML, compiled here: `nvml.cpp`.

use crate::cuda::NvidiaEnergy;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library with two devices, of which `faults` are defined.
fn twin(folder: &Path, faults: &[&str]) -> PathBuf {
    let (source, library) = (folder.join("nvml.cpp"), folder.join(format!("libnvml-{}.so", faults.concat())));
    std::fs::write(&source, include_str!("nvml.cpp")).unwrap();
    let defined = faults.iter().map(|fault| format!("-D{fault}"));
    let mut command = Command::new("g++");
    command.args(["-std=c++17", "-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library);
    let said = command.arg(&source).args(defined).output().expect("g++ compiles the twin: install g++");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    library
}

#[test]
fn the_energy_of_every_device_is_counted_in_microjoules() {
    let folder = tempfile::tempdir().unwrap();
    let path = twin(folder.path(), &[]);
    let energy = NvidiaEnergy::open_at(&path).unwrap();
    assert_eq!(energy.devices(), 2);
    // The twin's devices take 5 and 7 mJ from one question to the next.
    assert_eq!(energy.microjoules().unwrap(), [5_000, 7_000]);
    assert_eq!(energy.microjoules().unwrap(), [10_000, 14_000]);
    drop(energy);
    // Shut down, and initialised again: the twin fails if the two do not follow each other.
    assert!(NvidiaEnergy::open_at(&path).is_ok_and(|energy| energy.microjoules().is_ok()));
}

#[test]
fn what_a_driver_does_not_say_is_told_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let opened = |fault| NvidiaEnergy::open_at(&twin(folder.path(), &[fault]));
    for (fault, told) in [
        ("NO_DRIVER", "NVML: its initialisation: error 9, the driver is not loaded"),
        ("NO_DEVICE", "NVML finds no device"),
        ("NO_HANDLE", "NVML: device 1: error 4, no permission"),
        ("TOO_OLD", "the library is too old: it has no nvmlDeviceGetTotalEnergyConsumption"),
    ] {
        assert_eq!(opened(fault).unwrap_err(), told);
    }
    for (fault, told) in [
        ("UNSUPPORTED", "NVML: the energy of device 1: error 3, not supported"),
        ("LOST", "NVML: the energy of device 0: error 15, the GPU is lost"),
        ("MAD", "device 0: 18446744073709551615 mJ are no energy"),
    ] {
        assert_eq!(opened(fault).unwrap().microjoules().unwrap_err(), told);
    }
    let absent = NvidiaEnergy::open_at(&folder.path().join("absent.so")).unwrap_err();
    assert!(absent.contains("absent.so"), "{absent}");
}
