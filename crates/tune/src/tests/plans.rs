//! Plans of played machines.

use super::played::{Machine, rows};
use crate::check::check;
use crate::ethtool::Device;
use crate::host::{Host, Reading, System};
use crate::place::{Coalescing, Place};
use crate::plan::{Options, plan};
use crate::report::Outcome;
use crate::setting::{Group, Wanted};
use std::os::unix::fs::symlink;

#[test]
fn check_says_what_the_device_lacks_and_why_and_changes_nothing() {
    let machine = Machine::new();
    let before = machine.everything();
    let host = machine.system("eth1");
    let report = check(&host, &plan(&host, &Options::default()));
    let note = |name: &str| {
        let row = report.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}"));
        (row.outcome, row.note.clone().unwrap_or_default())
    };
    assert_eq!(note("tx-scatter-gather"), (Outcome::NotSupported, "it is fixed at off".to_owned()));
    assert_eq!(note("rx-checksum"), (Outcome::AsWanted, String::new()));
    assert_eq!(note("ring tx"), (Outcome::NotSupported, "the device has none".to_owned()));
    assert_eq!(note("interrupts"), (Outcome::NotSupported, "the device has none of its own".to_owned()));
    assert_eq!(note("governor of policy1").0, Outcome::NotSupported);
    assert_eq!(note("net.ipv4.tcp_moderate_rcvbuf").0, Outcome::NotSupported);
    assert_eq!(note("net.ipv4.tcp_wmem").0, Outcome::AsWanted);
    assert_eq!(note("mtu").0, Outcome::Advice);
    assert!(note("isolated cores").1.contains("isolcpus=managed_irq,domain,1-3 nohz_full=1-3"));
    assert!(report.has(Outcome::Differs));
    assert_eq!(machine.everything(), before);
}

#[test]
fn only_the_groups_that_were_asked_for_are_planned() {
    let machine = Machine::new();
    let host = machine.system("eth0");
    let only = vec![Group::Napi, Group::Isolation];
    let plan = plan(&host, &Options { only, ..Options::default() });
    let groups: Vec<Group> = plan.settings.iter().map(|setting| setting.group).collect();
    assert_eq!(groups, [Group::Napi, Group::Napi]);
    assert_eq!(plan.advice.len(), 1);
    assert!(plan.lacking.is_empty());
}

#[test]
fn a_driver_that_chooses_its_interrupts_by_load_is_let() {
    let machine = Machine::new();
    let adaptive = Place::Coalescing { item: Coalescing::AdaptiveRx };
    machine.device("eth0").has(&adaptive, Reading::Value("off".to_owned()));
    let host = machine.system("eth0");
    let options = Options { only: vec![Group::Coalescing], ..Options::default() };
    let places: Vec<Place> =
        plan(&host, &options).settings.into_iter().map(|setting| setting.place).collect();
    assert_eq!(places, [adaptive]);
}

/// The kernel would switch off those of the interfaces below, and undo could not say which were on.
#[test]
fn lro_of_an_interface_on_top_of_others_is_left_to_them() {
    let machine = Machine::new();
    let only = Options { only: vec![Group::Offloads], ..Options::default() };
    let before = machine.device("eth0").read(&Place::feature("rx-lro"));
    symlink("../eth1", machine.root().join("sys/class/net/eth0/lower_eth1")).unwrap();
    let report = machine.apply("eth0", &only);
    assert_eq!(
        rows(&report, Outcome::NotSupported),
        ["tx-scatter-gather", "tx-generic-segmentation", "tx-udp-segmentation", "rx-lro"],
        "{report:#?}"
    );
    assert_eq!(machine.device("eth0").read(&Place::feature("rx-lro")), before);
    let report = machine.apply("eth1", &only);
    assert!(rows(&report, Outcome::Changed).contains(&"rx-lro"), "{report:#?}");
}

/// Isolated processors and those of another node serve no queue.
#[test]
fn queues_are_served_near_the_device_and_not_by_isolated_processors() {
    let machine = Machine::new();
    machine.put("sys/class/net/eth0/device/local_cpulist", "1-3");
    machine.put("sys/devices/system/cpu/isolated", "3");
    let host = machine.system("eth0");
    let options = Options { only: vec![Group::Affinity], ..Options::default() };
    let wanted: Vec<(String, Wanted)> =
        plan(&host, &options).settings.into_iter().map(|s| (s.place.to_string(), s.wanted)).collect();
    let mask = |name: &str, processors: &[usize]| (name.to_owned(), Wanted::Mask(processors.to_vec()));
    let interrupt =
        |number, processor| (format!("processors of interrupt {number}"), Wanted::Processor(processor));
    assert_eq!(
        wanted,
        [
            mask("rx-0/rps_cpus", &[1, 2]),
            mask("tx-0/xps_cpus", &[1]),
            mask("tx-1/xps_cpus", &[2]),
            interrupt(40, 1),
            interrupt(41, 2),
        ]
    );
}

#[test]
fn processors_that_are_asked_for_are_kept_free() {
    let machine = Machine::new();
    let host = machine.system("eth0");
    let only = vec![Group::Affinity, Group::Isolation];
    let options = Options { isolate: vec![2, 3], only, ..Options::default() };
    let made = plan(&host, &options);
    let wanted: Vec<(String, String)> =
        made.settings.iter().map(|s| (s.place.to_string(), s.wanted.to_string())).collect();
    let expected = [
        ("rx-0/rps_cpus", "3"),
        ("tx-0/xps_cpus", "1"),
        ("tx-1/xps_cpus", "2"),
        ("processors of interrupt 40", "0"),
        ("processors of interrupt 41", "1"),
        ("default processors of interrupts", "without 2-3"),
        ("processors of unbound workqueues", "without 2-3"),
    ];
    assert_eq!(wanted, expected.map(|(name, wanted)| (name.to_owned(), wanted.to_owned())));
    assert!(made.advice[0].text.contains("cpuset.cpus.partition"), "{:?}", made.advice);
    assert!(made.advice[0].text.contains("isolcpus=managed_irq,domain,2-3"), "{:?}", made.advice);
    // Without being asked, nobody's interrupts move.
    let unasked = plan(&host, &Options { isolate: Vec::new(), ..options });
    assert!(!unasked.settings.iter().any(|setting| setting.group == Group::Isolation));

    // The one that is left has the device's interrupts, and no flow goes to the other one.
    machine.put("sys/devices/system/cpu/online", "0-1");
    let only = vec![Group::Affinity];
    let of_two = plan(&host, &Options { isolate: vec![1], only, ..Options::default() });
    let (queues, interrupts) = of_two.settings.split_at(1);
    assert_eq!(queues[0].place, Place::interface("queues/rx-0/rps_cpus"));
    assert_eq!(queues[0].wanted, Wanted::Without(vec![1]));
    assert!(interrupts.iter().all(|setting| setting.wanted == Wanted::Processor(0)), "{of_two:?}");
    assert_eq!(interrupts.len(), 2);
    assert!(interrupts.iter().all(|setting| setting.why == "the others are to be kept free"), "{of_two:?}");
}

/// As an earlier apply has spread them, or an administrator: where queues are no longer fewer than the
/// processors that are left, nothing else would take these out.
#[test]
fn no_flow_is_handed_to_processors_that_are_kept_free() {
    let rps = |queue: usize| format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus");
    let apply = |machine: &Machine, isolate: Vec<usize>| {
        let only = vec![Group::Affinity, Group::Isolation];
        machine.apply("eth0", &Options { isolate, only, ..Options::default() })
    };
    let machine = Machine::new();
    machine.put(&rps(0), "0");
    machine.put(&rps(1), "c");
    let before = machine.everything();
    apply(&machine, Vec::new());
    assert_eq!([0, 1].map(|queue| machine.value(&rps(queue))), ["f", "f"]);
    for (isolate, expected) in [(vec![2, 3], "3"), (vec![1, 2, 3], "1")] {
        apply(&machine, isolate);
        assert_eq!([0, 1].map(|queue| machine.value(&rps(queue))), [expected; 2]);
    }
    machine.undo("eth0");
    assert_eq!(machine.everything(), before);

    // All of them: none is left that could serve the queues, and nothing of them changes.
    let report = apply(&machine, vec![0, 1, 2, 3]);
    let queues = report.rows.iter().find(|row| row.name == "queues").unwrap();
    assert_eq!(queues.note.as_deref(), Some("no processor is left for them"));
    assert_eq!(machine.everything(), before);
}

#[test]
fn processors_that_cannot_be_kept_free_are_named() {
    let machine = Machine::new();
    let host = machine.system("eth0");
    let lacking = |isolate: Vec<usize>| -> Vec<(String, String)> {
        let made = plan(&host, &Options { isolate, only: vec![Group::Isolation], ..Options::default() });
        made.lacking.into_iter().chain(made.unmet).map(|(_, name, why)| (name, why)).collect()
    };
    let cores = |why: &str| vec![("isolated cores".to_owned(), why.to_owned())];
    assert_eq!(lacking(vec![0, 1, 2, 3]), cores("a processor has to be left for everything else"));
    assert_eq!(lacking(vec![7]), cores("no such processor is online"));
    assert!(lacking(vec![3]).is_empty());
    // Not as what nobody has asked for.
    for isolate in [vec![0, 1, 2, 3], vec![7]] {
        let only = vec![Group::Isolation];
        let report = machine.apply("eth0", &Options { isolate, only, ..Options::default() });
        assert_eq!(rows(&report, Outcome::NotPossible), ["isolated cores"], "{report:#?}");
    }
    // A partition has taken one, which comes back to the mask by itself.
    machine.put("sys/devices/virtual/workqueue/cpumask_requested", "0000000f");
    assert!(lacking(vec![3]).is_empty());
    machine.put("sys/devices/virtual/workqueue/cpumask", "00000007");
    assert_eq!(lacking(vec![3])[0].0, "processors of unbound workqueues");
}

#[test]
fn one_processor_serves_everything() {
    let machine = Machine::new();
    machine.put("sys/devices/system/cpu/online", "0");
    let host = machine.system("eth0");
    let report = check(&host, &plan(&host, &Options::default()));
    let lacking = rows(&report, Outcome::NotSupported);
    assert!(lacking.contains(&"queues") && lacking.contains(&"isolated cores"), "{lacking:?}");
}

/// The interrupts of a virtio device are its parent's.
#[test]
fn interrupts_of_a_virtio_device_are_found() {
    let machine = Machine::new();
    let device = machine.root().join("sys/devices/pci0/virtio3");
    std::fs::create_dir_all(&device).unwrap();
    machine.put("sys/devices/pci0/msi_irqs/25", "msix");
    symlink("../../../bus/virtio", device.join("subsystem")).unwrap();
    symlink(&device, machine.root().join("sys/class/net/eth1/device")).unwrap();
    let host = machine.system("eth1");
    let options = Options { only: vec![Group::Affinity], ..Options::default() };
    let places: Vec<Place> =
        plan(&host, &options).settings.into_iter().map(|setting| setting.place).collect();
    assert_eq!(places.last(), Some(&Place::Interrupt { number: 25 }));
}

#[test]
fn an_interface_that_is_not_there_or_is_a_path_is_refused() {
    let machine = Machine::new();
    for name in ["eth9", "../net/eth0", "", "."] {
        let system = System::new(machine.root(), name, machine.device("eth0"));
        assert!(system.is_err_and(|error| error.to_string().contains("ip link")), "{name}");
    }
    assert_eq!(machine.system("eth0").interface(), "eth0");
}
