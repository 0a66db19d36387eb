//! Paper 001: TCP streams through Linux's IPsec, host to host.
//!
//! Its figures have a line for each algorithm over ten sizes of messages, on nine computers. Here are the
//! protections and sizes that its text speaks of, between two ends on this machine.

mod reading;

use super::item::{How, Item, Method, Paper, Printed, printed};
use super::reading::{Reading, Wrong};
use serde_json::Value;

const PAPER: Paper = Paper::LinuxIpsec;

const TEN: &[Printed] = &[printed("throughput lost by tunnel mode, of transport mode", "3", "%")];
const HUNDRED: &[Printed] = &[printed("difference between transport and tunnel mode", "3 to 5", "%")];
const HUNDRED_FAST: &[Printed] = &[printed("throughput lost by 3DES", "35 to 40", "Mbit/s")];
const THOUSAND: &[Printed] = &[
    printed("confidentiality and integrity, at most", "300", "Mbit/s"),
    printed("plain IP fills the link, with messages from", "more than 256", "bytes"),
];
const PROCESSORS: &[Printed] = &[printed("CPU usage with IPsec", "100", "% (most of it softirq, then irq)")];
const STEPS: &[Printed] = &[
    printed("gain by TCP's options and buffers, plain IP", "20", "Mbit/s"),
    printed("gain by TCP's options and buffers, AH", "20", "Mbit/s"),
    printed("gain by TCP's options and buffers, ESP", "up to 150", "Mbit/s"),
    printed("gain by interrupt coalescing or NAPI", "50 (10 less below 1,024 bytes)", "Mbit/s"),
    printed("gain by an MTU of 9,000 bytes, AH", "up to 450 (tunnel mode, MD5)", "Mbit/s"),
];
const FRAMES: &[Printed] = &[
    printed("AH with MD5 in tunnel mode, peak", "985 (as plain IP)", "Mbit/s"),
    printed("plain IP, peak", "985", "Mbit/s"),
    printed("ESP and AH combined, gain", "100", "Mbit/s"),
];

/// What a run of all algorithms and sizes takes; said of each figure.
macro_rules! conditions {
    ($what:literal) => {
        concat!(
            $what,
            " Two gateways of Testudo between private namespaces of this machine, whose processors both ends share; the link is a token bucket (tc), and Linux's own IPsec is not measured. A full run has the paper's 10-second \
             runs, 4 to 12 of each row until the 95 % confidence interval is within 3 %, of some of its sizes and algorithms: `testudo lab tcp --suites paper` has all, in hours."
        )
    };
}

const SLOW: Method = Method {
    quick: "lab tcp --quick --repetitions 2 --link 10 --modes tunnel,transport --suites aes128-sha1 --sizes 64,32768",
    full: "lab tcp --link 10 --modes tunnel,transport --suites 3des-sha1,aes128-sha1 --sizes 64,32768",
    quick_seconds: 25,
    full_seconds: 540,
    conditions: conditions!("ESP."),
    read: reading::slow,
};
/// Figures 2 and 3 are of other computers, and here of one measurement.
const fn fast(read: fn(&[Value]) -> Result<Reading, Wrong>) -> How {
    How::Measured(Method {
        quick: "lab tcp --quick --repetitions 2 --link 100 --modes tunnel,transport --suites 3des-sha1,aes128-sha1 --sizes 64,32768",
        full: "lab tcp --link 100 --modes tunnel,transport --suites 3des-sha1,aes128-sha1 --sizes 64,1024,32768",
        quick_seconds: 38,
        full_seconds: 740,
        conditions: conditions!(
            "ESP. Figures 2 and 3 have the same settings on other computers; here they share a measurement."
        ),
        read,
    })
}
/// Figures 4 and 5 are of one measurement in the paper, too.
const fn gigabit(read: fn(&[Value]) -> Result<Reading, Wrong>) -> How {
    How::Measured(Method {
        quick: "lab tcp --quick --repetitions 2 --link 1000 --protocols esp,ah --suites md5,3des-sha1,aes128-sha1 --sizes 64,1024,32768 {pin}",
        full: "lab tcp --link 1000 --protocols esp,ah --suites md5,3des-sha1,aes128-sha1 --sizes 64,512,1024,32768 {pin}",
        quick_seconds: 38,
        full_seconds: 1500,
        conditions: conditions!(
            "AH and ESP in tunnel mode. Where there are two processors each end has half of them, and the kernel's work for a packet of a virtual cable is done at its sender."
        ),
        read,
    })
}
const TUNING: Method = Method {
    quick: "lab tcp --quick --repetitions 2 --link 1000 --tuning each --protocols esp,ah --suites md5,aes128-sha1 --sizes 32768",
    full: "lab tcp --link 1000 --tuning each --protocols esp,ah --suites md5,aes128-sha1 --sizes 1024,32768",
    quick_seconds: 60,
    full_seconds: 1550,
    conditions: conditions!(
        "The steps of testudo tune, each after those before it. A virtual cable has no NIC to tune: what changes nothing there is named."
    ),
    read: reading::steps,
};
const MTU: Method = Method {
    quick: "lab tcp --quick --repetitions 2 --link 1000 --tuning all --mtu 1500,9000 --protocols esp,ah --suites md5,sha1,aes128-sha1,3des-sha1 --sizes 1024,32768 \
        && testudo lab tcp --quick --repetitions 2 --link 1000 --tuning all --mtu 1500,9000 --protocols ah+esp --ah-suite sha1 --suites aes256-sha1 --sizes 1024,32768",
    // A command for each MTU: a run that is stopped keeps those that are done.
    full: "lab tcp --link 1000 --tuning all --mtu 1500 --protocols esp,ah --suites md5,sha1,aes128-sha1,3des-sha1 --sizes 64,32768 \
        && testudo lab tcp --link 1000 --tuning all --mtu 9000 --protocols esp,ah --suites md5,sha1,aes128-sha1,3des-sha1 --sizes 64,32768 \
        && testudo lab tcp --link 1000 --tuning all --mtu 1500 --protocols ah+esp --ah-suite sha1 --suites aes256-sha1 --sizes 64,32768 \
        && testudo lab tcp --link 1000 --tuning all --mtu 9000 --protocols ah+esp --ah-suite sha1 --suites aes256-sha1 --sizes 64,32768",
    quick_seconds: 75,
    full_seconds: 2530,
    conditions: conditions!(
        "All steps of testudo tune but that of the MTU, and the protections of section 5.3, as in the paper; tunnel mode."
    ),
    read: reading::frames,
};

const fn measured(name: &'static str, title: &'static str, printed: &'static [Printed], how: How) -> Item {
    Item { paper: PAPER, name, title, printed, how }
}

/// Its figures and its table, and the section that has numbers without one.
pub(super) static ITEMS: [Item; 8] = [
    Item {
        paper: PAPER,
        name: "Table 1",
        title: "Testbed components",
        printed: &[],
        how: How::Drawing("it lists the paper's computers; this machine is described above"),
    },
    measured("Figure 1", "IP and IPsec comparison, 10 Mbit/s link", TEN, How::Measured(SLOW)),
    measured("Figure 2", "(P2, P4M) IP and IPsec comparison, 100 Mbit/s link", HUNDRED, fast(reading::modes)),
    measured(
        "Figure 3",
        "(X1, X2) IP and IPsec comparison, 100 Mbit/s link",
        HUNDRED_FAST,
        fast(reading::triple),
    ),
    measured(
        "Figure 4",
        "(X1, X2) IP and IPsec comparison, 1 Gbit/s link",
        THOUSAND,
        gigabit(reading::gigabit),
    ),
    measured("Figure 5", "(X1, X2) CPU utilization, 1 Gbit/s link", PROCESSORS, gigabit(reading::processors)),
    measured("Section 5", "Optimizations: TCP, interrupt coalescence, MTU", STEPS, How::Measured(TUNING)),
    measured("Figure 6", "MTU contribution", FRAMES, How::Measured(MTU)),
];
