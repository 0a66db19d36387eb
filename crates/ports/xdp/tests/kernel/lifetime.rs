//! What is attached when, and errors that say what to do.

use crate::support::{Sites, config, open, pool};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_link::FrameDevice;
use testudo_packet::Batch;
use testudo_port_xdp::{Filter, OpenError, SharedUmem, XdpConfig, XdpDevice, XdpMode, ZeroCopy};

/// The argument with which this program tells why it cannot attach a filter.
pub const TRY: &str = "--try-to-attach";

/// The argument with which this program holds a device until it is killed.
pub const HOLD: &str = "--hold-a-device";

pub fn tests(suite: Suite<'_, Sites>) -> Suite<'_, Sites> {
    suite
        .test("a_killed_gateway_leaves_no_filter_attached", killed)
        .test("a_filter_is_attached_as_long_as_somebody_has_it", dropped)
        .test("auto_is_native_where_that_works_and_says_why_not_elsewhere", auto)
        .test("what_is_missing_is_told_with_what_to_do", missing)
        .test("a_queue_can_be_opened_again_at_once", again)
        .test("without_roots_rights_the_error_says_which_are_needed", unprivileged)
        .test("an_interface_may_go_down_and_one_that_has_gone_ends_the_device", gone)
}

fn is_attached(site: &Namespace) -> bool {
    let shown = site.run(&["ip", "-details", "link", "show", "eth0"]).unwrap();
    shown.contains("prog/xdp")
}

/// Holds a device on `eth0` of the namespace that this process is in.
pub fn hold() -> ExitCode {
    let filter = Arc::new(Filter::attach("eth0", XdpMode::Native, &config()).unwrap());
    let _device = XdpDevice::open(&filter, &SharedUmem::new(), &mut pool(), &XdpConfig::default()).unwrap();
    println!("held");
    loop {
        std::thread::park();
    }
}

fn killed(sites: &mut Sites) -> TestResult {
    let mut command: Command = sites.left.command(std::env::current_exe()?);
    let mut child = command.arg(HOLD).stdout(Stdio::piped()).process_group(0).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line)?;
    assert_eq!((line.as_str(), is_attached(&sites.left)), ("held\n", true));
    child.kill()?;
    child.wait()?;
    // Kernels before 6.11 end a link a moment after its descriptor.
    let is_gone = (0..100).any(|_| !is_attached(&sites.left));
    assert!(is_gone, "the filter is still attached");
    // And the queue is free.
    drop(open(&sites.left, "eth0", XdpMode::Native, &XdpConfig::default()));
    Ok(())
}

fn dropped(sites: &mut Sites) -> TestResult {
    let opened = open(&sites.left, "eth0", XdpMode::Native, &XdpConfig::default());
    let filter = Arc::clone(&opened.filter);
    drop(opened);
    assert!(is_attached(&sites.left));
    sites.left.run(&["ping", "-c", "1", "-W", "5", "10.9.0.2"])?;
    drop(filter);
    assert!((0..100).any(|_| !is_attached(&sites.left)));
    Ok(())
}

fn auto(sites: &mut Sites) -> TestResult {
    let opened = open(&sites.left, "eth0", XdpMode::Auto, &XdpConfig::default());
    assert_eq!(opened.filter.native_refused(), None);
    assert!(!opened.device.is_zero_copy());
    let why = opened.device.zero_copy_refused().expect("veth has no zero-copy");
    assert!(why.contains("cannot do without the copy"), "{why}");
    drop(opened);
    sites.left.run(&["ip", "link", "add", "flat0", "type", "bridge"])?;
    sites.left.link_up("flat0")?;
    let filter = sites.left.within(|| Filter::attach("flat0", XdpMode::Auto, &config()))??;
    let why = filter.native_refused().expect("a bridge has no native mode").to_owned();
    assert!(why.contains("no native XDP"), "{why}");
    drop(filter);
    sites.left.run(&["ip", "link", "delete", "flat0"])?;
    Ok(())
}

fn missing(sites: &mut Sites) -> TestResult {
    let attach = |name: &str, mode| sites.left.within(|| Filter::attach(name, mode, &config())).unwrap();
    assert!(matches!(attach("eth7", XdpMode::Auto), Err(OpenError::InterfaceAbsent { .. })));
    assert!(matches!(attach("lo", XdpMode::Auto), Err(OpenError::NotEthernet { .. })));
    let filter = Arc::new(attach("eth0", XdpMode::Native)?);
    let second = attach("eth0", XdpMode::Native);
    assert!(matches!(second, Err(OpenError::ProgramAttached { .. })), "{second:?}");
    let open = |xdp: XdpConfig| {
        let opened = sites.left.within(|| XdpDevice::open(&filter, &SharedUmem::new(), &mut pool(), &xdp));
        opened.unwrap().err().map(|error| error.to_string()).unwrap_or_default()
    };
    let of = |queues| XdpConfig { queues, ..XdpConfig::default() };
    assert!(open(of(vec![0, 2])).contains("no queue 2, only 2"));
    assert!(open(of(vec![])).contains("name at least queue 0"));
    assert!(open(XdpConfig { ring_entries: 100, ..of(vec![0]) }).contains("power of two"));
    let always = open(XdpConfig { zero_copy: ZeroCopy::Always, ..of(vec![0]) });
    assert!(always.contains("zero_copy = \"auto\""), "{always}");
    let held = crate::support::open_on(&filter, &sites.left);
    assert!(open(of(vec![0])).contains("in use by another program"));
    drop((held, filter));
    let one = ["ip", "link", "add", "thin0", "numrxqueues", "1", "numtxqueues", "1", "type", "veth"];
    let two = ["peer", "name", "thin1", "numrxqueues", "2", "numtxqueues", "2"];
    sites.left.run(&[&one[..], &two].concat())?;
    sites.left.link_up("thin0")?;
    sites.left.link_up("thin1")?;
    let thin = attach("thin0", XdpMode::Native).map(drop).expect_err("the other end sends by two queues");
    sites.left.run(&["ip", "link", "delete", "thin0"])?;
    assert!(thin.to_string().contains("as many receive queues"), "{thin}");
    Ok(())
}

/// The kernel says EBUSY directly after a socket was closed.
fn again(sites: &mut Sites) -> TestResult {
    let xdp = XdpConfig { queues: vec![0, 1], ..XdpConfig::default() };
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for _ in 0..10 {
            drop(open(&sites.left, "eth0", mode, &xdp));
        }
    }
    Ok(())
}

/// Tells why no filter can be attached to `eth0`.
pub fn attempt() -> ExitCode {
    match Filter::attach("eth0", XdpMode::Auto, &config()) {
        Ok(_) => println!("attached"),
        Err(error) => println!("{error}"),
    }
    ExitCode::SUCCESS
}

/// In a user namespace root has no rights of the first one.
fn unprivileged(_: &mut Sites) -> TestResult {
    let program = std::env::current_exe()?;
    let script = format!("ip link add eth0 type veth peer name eth1 && {} {TRY}", program.display());
    let words = ["--user", "--map-root-user", "--net", "sh", "-c", &script];
    let output = Command::new("unshare").args(words).output()?;
    let said = String::from_utf8(output.stdout)?;
    assert!(said.contains("CAP_BPF") && said.contains("user namespace"), "{said}");
    Ok(())
}

fn gone(sites: &mut Sites) -> TestResult {
    let pair = ["ip", "link", "add", "gone0", "type", "veth", "peer", "name", "gone1"];
    sites.left.run(&pair)?;
    sites.left.link_up("gone0")?;
    sites.left.link_up("gone1")?;
    let mut opened = open(&sites.left, "gone0", XdpMode::Native, &XdpConfig::default());
    sites.left.run(&["ip", "link", "set", "gone0", "down"])?;
    opened.send(&[vec![0xFF; 60]]);
    assert_eq!(opened.device.rx(&mut opened.pool, &mut Batch::new())?, 0);
    sites.left.link_up("gone0")?;
    opened.send(&[vec![0xFF; 60]]);
    sites.left.run(&["ip", "link", "delete", "gone0"])?;
    let ended = (0..1000).find_map(|_| opened.device.rx(&mut opened.pool, &mut Batch::new()).err());
    let ended = ended.expect("the device has gone").to_string();
    assert!(ended.contains("gone0"), "{ended}");
    Ok(())
}
