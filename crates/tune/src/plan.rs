//! What an interface, and the machine below it, should be set to.

use crate::companions::is_on_others;
use crate::host::Host;
use crate::place::{Coalescing, Direction, Housekeeping, Place};
use crate::processors::{list, ranges};
use crate::setting::{Advice, Group, Setting, Wanted};
use serde::{Deserialize, Serialize};

/// Bytes of the largest socket buffers: what Iatrou et al. (section 5.1) found best for 1 Gbit/s.
const BUFFER_BYTES: u64 = 4 << 20;
/// Packets that may wait for a processor that is to handle them.
const BACKLOG_PACKETS: u64 = 4096;
/// Descriptors of a ring: a burst at 10 Gbit/s while the core is away for some hundred microseconds.
const RING_DESCRIPTORS: u64 = 1024;
/// Where the driver does not choose: 20,000 interrupts a second at most.
const RX_USECS: u64 = 50;
/// Times that a queue may be polled and found empty before its interrupt is armed again.
const DEFERRED_INTERRUPTS: u64 = 2;
/// How long the kernel itself waits then, which bounds the latency that this costs.
const FLUSH_NANOSECONDS: u64 = 20_000;
/// The size that ports of kind dpdk are tried with.
const HUGE_PAGE_KIB: u64 = 2048;

/// What the user chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// MTU, in bytes of an IP packet; nothing leaves it as it is.
    pub mtu: Option<u64>,
    /// Huge pages of 2 MiB; nothing leaves their number as it is.
    pub huge_pages: Option<u64>,
    /// Processors to keep free for workers that poll; none unless told.
    #[serde(default)]
    pub isolate: Vec<usize>,
    /// Only these groups; all if there are none.
    pub only: Vec<Group>,
}

/// What should be, in the order in which it is applied, and what can only be said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Settings.
    pub settings: Vec<Setting>,
    /// What the machine or the device lacks, and why: name, reason.
    pub lacking: Vec<(Group, String, String)>,
    /// What was asked for and cannot be had, and why.
    pub unmet: Vec<(Group, String, String)>,
    /// What somebody else has to do.
    pub advice: Vec<Advice>,
}

/// Makes the plan of an interface.
#[must_use]
pub fn plan(host: &dyn Host, options: &Options) -> Plan {
    let mut plan = Plan::default();
    for group in Group::ALL {
        if !options.only.is_empty() && !options.only.contains(&group) {
            continue;
        }
        match group {
            Group::Sockets => plan.sockets(),
            Group::Tcp => plan.tcp(),
            Group::Offloads => plan.offloads(host),
            Group::Rings => plan.rings(host),
            Group::Mtu => plan.mtu(options.mtu, host),
            Group::Coalescing => plan.coalescing(host),
            Group::Napi => plan.napi(),
            Group::Affinity => plan.affinity(&options.isolate, host),
            Group::Governor => plan.governor(host),
            Group::HugePages => plan.huge_pages(options.huge_pages, host),
            Group::Isolation => plan.isolation(&options.isolate, host),
        }
    }
    plan
}

impl Plan {
    fn set(&mut self, group: Group, place: Place, wanted: Wanted, why: &'static str) {
        self.settings.push(Setting { group, place, wanted, why });
    }

    fn lack(&mut self, group: Group, name: &str, why: &str) {
        self.lacking.push((group, name.to_owned(), why.to_owned()));
    }

    fn sockets(&mut self) {
        for name in ["net.core.rmem_max", "net.core.wmem_max"] {
            let why = "sockets hold what comes while their reader is not running";
            self.set(Group::Sockets, Place::sysctl(name), Wanted::AtLeast(BUFFER_BYTES), why);
        }
        let why = "packets wait here for the processor that RPS or a virtual interface hands them to";
        let backlog = Place::sysctl("net.core.netdev_max_backlog");
        self.set(Group::Sockets, backlog, Wanted::AtLeast(BACKLOG_PACKETS), why);
    }

    /// Iatrou et al. set all three numbers to these, which today would give each idle connection the most:
    /// the kernel moves from the default to the maximum by itself (`tcp_moderate_rcvbuf`).
    fn tcp(&mut self) {
        for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            let why = "a window as large as bandwidth times delay";
            self.set(Group::Tcp, Place::sysctl(name), Wanted::LastAtLeast(BUFFER_BYTES), why);
        }
        for (name, why) in [
            ("net.ipv4.tcp_moderate_rcvbuf", "windows grow to their maximum where a connection needs it"),
            ("net.ipv4.tcp_window_scaling", "windows beyond 64 KiB (RFC 7323 2)"),
            ("net.ipv4.tcp_timestamps", "round trips are measured, and old segments told apart (RFC 7323 3)"),
            ("net.ipv4.tcp_sack", "only what is lost is sent again (RFC 2018)"),
        ] {
            self.set(Group::Tcp, Place::sysctl(name), Wanted::Switch(true), why);
        }
    }

    fn offloads(&mut self, host: &dyn Host) {
        let is_on_others = is_on_others(host);
        for (name, on, why) in [
            ("rx-checksum", true, "the device verifies checksums"),
            ("tx-scatter-gather", true, "segmentation needs it"),
            ("tx-generic-segmentation", true, "one walk through the stack for many segments"),
            ("tx-tcp-segmentation", true, "the device cuts segments"),
            ("tx-udp-segmentation", true, "the device cuts datagrams, such as those of ESP in UDP"),
            ("rx-gro", true, "one walk through the stack for many segments"),
            ("rx-lro", false, "what LRO joins cannot be forwarded as it came"),
        ] {
            // Off, the kernel switches it off below as well, and never on again (netdev_sync_lower_features).
            if name == "rx-lro" && is_on_others {
                self.lack(Group::Offloads, name, "the interfaces below it decide: tune those");
                continue;
            }
            self.set(Group::Offloads, Place::feature(name), Wanted::Switch(on), why);
        }
    }

    fn rings(&mut self, host: &dyn Host) {
        for direction in [Direction::Rx, Direction::Tx] {
            let descriptors =
                host.ring_limit(direction).map_or(RING_DESCRIPTORS, |most| most.min(RING_DESCRIPTORS));
            let why = "a burst is kept while the core is away";
            self.set(Group::Rings, Place::Ring { direction }, Wanted::AtLeast(descriptors), why);
        }
    }

    fn mtu(&mut self, mtu: Option<u64>, host: &dyn Host) {
        if let Some(bytes) = mtu {
            let why = "fewer packets for the same bytes";
            self.set(Group::Mtu, Place::interface("mtu"), Wanted::Number(bytes), why);
            return;
        }
        let value = host.text(&format!("sys/class/net/{}/mtu", host.interface())).unwrap_or_default();
        let text =
            "jumbo frames are up to the network: `--mtu 9000` if every device of this link carries them";
        self.advice.push(Advice { group: Group::Mtu, name: "mtu".to_owned(), value, text: text.to_owned() });
    }

    /// Where the driver chooses by load, that serves small packets and large ones; else a fixed time.
    fn coalescing(&mut self, host: &dyn Host) {
        let adaptive = Place::Coalescing { item: Coalescing::AdaptiveRx };
        let fixed = Place::Coalescing { item: Coalescing::RxUsecs };
        let (place, wanted) = match host.read(&adaptive) {
            crate::host::Reading::Value(_) => (adaptive, Wanted::Switch(true)),
            _ => (fixed, Wanted::AtLeast(RX_USECS)),
        };
        let driver = host.link(&format!("sys/class/net/{}/device/driver", host.interface()));
        let is_intel = driver.as_deref().and_then(|link| link.rsplit('/').next()).is_some_and(of_intel);
        if is_intel && matches!(host.read(&place), crate::host::Reading::Value(v) if is_adaptive(&v)) {
            self.lack(Group::Coalescing, "rx-usecs", "the driver chooses it by load");
            return;
        }
        self.set(Group::Coalescing, place, wanted, "an interrupt for many packets, not for each");
    }

    fn napi(&mut self) {
        for (file, number, why) in [
            ("napi_defer_hard_irqs", DEFERRED_INTERRUPTS, "polling goes on over short gaps"),
            ("gro_flush_timeout", FLUSH_NANOSECONDS, "the longest such gap, in nanoseconds"),
        ] {
            self.set(Group::Napi, Place::interface(file), Wanted::AtLeast(number), why);
        }
    }

    /// Queues and interrupts are served near the device, and none by a processor that is to be kept free.
    fn affinity(&mut self, free: &[usize], host: &dyn Host) {
        let near = near_processors(free, host);
        if near.len() < 2 {
            let why = if near.is_empty() {
                "no processor is left for them"
            } else {
                "there is one processor for them"
            };
            self.lack(Group::Affinity, "queues", why);
        }
        if near.is_empty() || (near.len() < 2 && free.is_empty()) {
            return;
        }
        let interface = host.interface();
        let queues = host.names(&format!("sys/class/net/{interface}/queues"));
        let of = |beginning: &str| queues.iter().filter(|queue| queue.starts_with(beginning)).count();
        let (receive, send) = (of("rx-"), of("tx-"));
        self.receivers(receive, &near, free);
        for queue in (0..send).take_while(|_| send > 1 && near.len() > 1) {
            let why = "a processor sends by the same queue, whose lock it shares with few";
            let place = Place::interface(format!("queues/tx-{queue}/xps_cpus"));
            self.set(Group::Affinity, place, Wanted::Mask(senders(&near, queue, send)), why);
        }
        self.interrupts(host, &near);
    }

    /// Which processors the stack may hand a queue's flows to.
    fn receivers(&mut self, queues: usize, near: &[usize], free: &[usize]) {
        let is_spread = near.len() > 1 && queues < near.len();
        for queue in (0..queues).take_while(|_| is_spread || !free.is_empty()) {
            let (wanted, why) = if is_spread {
                let why =
                    "the stack's work for a queue is spread by flow, as queues are fewer than processors";
                (Wanted::Mask(near.to_vec()), why)
            } else {
                // Somebody may have spread them, or an earlier apply that had more processors for them.
                (Wanted::Without(free.to_vec()), "no flow is handed to a processor that is kept free")
            };
            let place = Place::interface(format!("queues/rx-{queue}/rps_cpus"));
            self.set(Group::Affinity, place, wanted, why);
        }
    }

    fn interrupts(&mut self, host: &dyn Host, near: &[usize]) {
        let numbers = interrupts(host);
        if numbers.is_empty() {
            self.lack(Group::Affinity, "interrupts", "the device has none of its own");
        }
        let why = if near.len() > 1 {
            "each queue has a processor of its own, near the device"
        } else {
            "the others are to be kept free"
        };
        for (number, processor) in numbers.into_iter().zip(near.iter().cycle()) {
            let place = Place::Interrupt { number };
            self.set(Group::Affinity, place, Wanted::Processor(*processor), why);
        }
    }

    fn governor(&mut self, host: &dyn Host) {
        let folder = "sys/devices/system/cpu/cpufreq";
        let policies = host.names(folder).into_iter().filter(|name| name.starts_with("policy"));
        let policies: Vec<String> = policies.collect();
        if policies.is_empty() {
            self.lack(Group::Governor, "governor", "firmware or the hypervisor sets the frequency");
        }
        for policy in policies {
            let known = host.text(&format!("{folder}/{policy}/scaling_available_governors"));
            if known.is_some_and(|known| known.split_whitespace().any(|word| word == "performance")) {
                let why = "packets come in bursts that are over before the frequency has risen";
                let wanted = Wanted::Word("performance".to_owned());
                self.set(Group::Governor, Place::Governor { policy }, wanted, why);
            } else {
                let name = format!("governor of {policy}");
                self.lack(Group::Governor, &name, "the kernel has no governor 'performance' for it");
            }
        }
    }

    fn huge_pages(&mut self, pages: Option<u64>, host: &dyn Host) {
        let place = Place::HugePages { size_kib: HUGE_PAGE_KIB };
        if let Some(pages) = pages {
            let why = "buffers of DPDK are in huge pages";
            self.set(Group::HugePages, place, Wanted::AtLeast(pages), why);
            return;
        }
        let value = place.file("").and_then(|file| host.text(&file)).unwrap_or_default();
        let text = "only ports of kind dpdk need them: `--huge-pages 512`".to_owned();
        self.advice.push(Advice { group: Group::HugePages, name: place.to_string(), value, text });
    }

    /// Interrupts and the kernel's own work are kept from the processors that are asked for; tasks are not.
    ///
    /// A cpuset partition would keep these from them while the machine runs. It is a folder in the host's
    /// tree of control groups, which has one writer, systemd as a rule, and it takes the processors from all
    /// tasks there, from those that are bound to them as well.
    fn isolation(&mut self, asked: &[usize], host: &dyn Host) {
        let (online, isolated) = (online(host), isolated(host));
        let (value, group, name) = (ranges(&isolated), Group::Isolation, "isolated cores".to_owned());
        let is_left = |one: &&usize| !asked.contains(one) && !isolated.contains(one);
        let lacking = match online.iter().filter(is_left).count() {
            _ if online.len() < 2 => Some("there is one processor for everything"),
            _ if asked.is_empty() => None,
            0 => Some("a processor has to be left for everything else"),
            _ if asked.iter().all(|one| !online.contains(one)) => Some("no such processor is online"),
            _ => None,
        };
        if let Some(why) = lacking {
            let lacking = if asked.is_empty() { &mut self.lacking } else { &mut self.unmet };
            lacking.push((group, name, why.to_owned()));
            return;
        }
        self.housekeeping(asked, host);
        let are_free = !isolated.is_empty() && asked.iter().all(|one| isolated.contains(one));
        let text = match asked {
            _ if are_free => "these are free for workers that poll".to_owned(),
            [] => {
                let list = ranges(online.get(1..).unwrap_or_default());
                let masks = "keeps interrupts and the kernel's own work from them";
                format!("for workers that poll: `--isolate {list}` {masks}; {}", from_the_scheduler(&list))
            }
            asked => format!("for workers that poll: {}", from_the_scheduler(&ranges(asked))),
        };
        self.advice.push(Advice { group, name, value, text });
    }

    /// The masks of what may run on any processor.
    fn housekeeping(&mut self, free: &[usize], host: &dyn Host) {
        let masks = [
            (Housekeeping::Interrupts, "interrupts of devices that come go to the others"),
            (Housekeeping::Workqueues, "the kernel's own work is done by the others"),
        ];
        for (of, why) in masks.into_iter().filter(|_| !free.is_empty()) {
            let place = Place::Housekeeping { of };
            // Less than was asked for: what is written back would be less, too, once the partition has ended.
            let requested = host.text(&format!("{}_requested", of.file()));
            if requested.is_some_and(|requested| Some(requested) != host.text(of.file())) {
                let why = "a cpuset partition has processors of them: whoever has made it decides";
                self.lack(Group::Isolation, &place.to_string(), why);
                continue;
            }
            self.set(Group::Isolation, place, Wanted::Without(free.to_vec()), why);
        }
    }
}

/// How processors are kept from the tasks of the host.
fn from_the_scheduler(list: &str) -> String {
    format!(
        "tasks are kept from them by a cpuset partition (cpuset.cpus.partition, Linux 6.1), which is up to who \
         manages the host's control groups, or by isolcpus=managed_irq,domain,{list} nohz_full={list} \
         rcu_nocbs={list} on the kernel's command line"
    )
}

/// Drivers with modes, not microseconds, at 1 to 3 of `rx-usecs` (their `InterruptThrottleRate`).
fn of_intel(driver: &str) -> bool {
    matches!(driver, "e1000" | "e1000e" | "igb" | "igbvf" | "igc" | "ixgbe" | "ixgbevf")
}

fn is_adaptive(rx_usecs: &str) -> bool {
    matches!(rx_usecs, "1" | "2" | "3")
}

fn online(host: &dyn Host) -> Vec<usize> {
    list(&host.text("sys/devices/system/cpu/online").unwrap_or_default())
}

fn isolated(host: &dyn Host) -> Vec<usize> {
    list(&host.text("sys/devices/system/cpu/isolated").unwrap_or_default())
}

/// The processors of the device's NUMA node that are not isolated, nor to be kept free; or all such if it has
/// no node.
fn near_processors(free: &[usize], host: &dyn Host) -> Vec<usize> {
    let (online, isolated) = (online(host), [isolated(host).as_slice(), free].concat());
    let file = format!("sys/class/net/{}/device/local_cpulist", host.interface());
    let local = list(&host.text(&file).unwrap_or_default());
    let usable = |processor: &&usize| !isolated.contains(processor);
    let near: Vec<usize> =
        online.iter().filter(usable).filter(|processor| local.contains(processor)).copied().collect();
    if near.is_empty() { online.iter().filter(usable).copied().collect() } else { near }
}

/// Which of the processors send by a queue: each has one, and no queue is idle.
fn senders(near: &[usize], queue: usize, queues: usize) -> Vec<usize> {
    if queues > near.len() {
        return near.iter().skip(queue % near.len()).take(1).copied().collect();
    }
    near.iter().skip(queue).step_by(queues).copied().collect()
}

/// The interrupts of the device, in order. Those of a virtio device are its parent's.
pub(crate) fn interrupts(host: &dyn Host) -> Vec<u32> {
    let device = format!("sys/class/net/{}/device", host.interface());
    let is_virtio = host.link(&format!("{device}/subsystem")).is_some_and(|bus| bus.ends_with("/virtio"));
    let folder = if is_virtio { format!("{device}/../msi_irqs") } else { format!("{device}/msi_irqs") };
    let mut numbers: Vec<u32> = host.names(&folder).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
