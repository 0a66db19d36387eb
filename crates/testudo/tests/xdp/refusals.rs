//! What is missing is said in one line, with the exit code of ports.

use crate::support::Outcome;
use crate::support::config::Config;
use crate::support::ensure;
use crate::support::gateway::{Gateway, Said, proc_file, run_command, run_to_end};
use crate::support::sites::Network;
use crate::support::wait;
use crate::traffic::{NATIVE, ends};
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::ping;

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite
        .test("what_an_interface_does_not_have_is_told_with_exit_code_4", absent)
        .test("a_gateway_without_the_rights_says_which", no_rights)
        .test("the_capabilities_of_the_unit_are_enough", capabilities_of_the_unit)
        .test("a_second_gateway_at_an_interface_is_refused", busy)
}

/// The exit code of a missing device, port or right.
const PORT: i32 = 4;

/// The left gateway, with this protected port.
fn with_protected(text: &str) -> Outcome<Config> {
    let [mut a, _] = ends(false, false, NATIVE)?;
    a.kinds[0] = Some(text.to_owned());
    Ok(a)
}

fn absent(network: &mut Network) -> TestResult {
    for (port, complaint) in [
        ("interface = \"eth7\"", "there is no interface eth7"),
        ("interface = \"lo\"", "has no Ethernet frames"),
        ("interface = \"lan\"\nqueues = [0, 2]", "has no queue 2, only 2"),
        ("interface = \"lan\"\nzero_copy = \"always\"", "cannot do without the copy"),
    ] {
        let folder = network.folder_of(&with_protected(&format!("kind = \"xdp\"\n{port}"))?)?;
        run_to_end(&network.a, &folder)?.refused(PORT, complaint)?;
    }
    // The driver of a switch has no native mode.
    network.a.bridge("switch", &[])?;
    let protected =
        |mode: &str| with_protected(&format!("kind = \"xdp\"\ninterface = \"switch\"\nmode = \"{mode}\""));
    let folder = network.folder_of(&protected("native")?)?;
    run_to_end(&network.a, &folder)?.refused(PORT, "the driver of switch has no native XDP")?;
    let folder = network.folder_of(&protected("auto")?)?;
    let gateway = Gateway::start(&network.a, &folder)?;
    let device = crate::traffic::port(&gateway, "protected")?["device"].clone();
    assert_eq!(device["facts"]["mode"], "generic", "{device:#}");
    let why = device["facts"]["native_refused"].as_str().unwrap_or_default();
    assert!(why.contains("has no native XDP"), "{device:#}");
    gateway.stop()?;
    network.a.run(&["ip", "link", "delete", "switch"])?;
    Ok(())
}

fn no_rights(network: &mut Network) -> TestResult {
    let [a, _] = ends(false, false, NATIVE)?;
    let folder = network.folder_of(&a)?;
    // Root of all has these by CAP_SYS_ADMIN, too.
    for missing in ["-net_admin,-sys_admin", "-net_raw,-sys_admin", "-bpf,-sys_admin", "-perfmon,-sys_admin"]
    {
        let run = run_command(&network.a, &folder);
        let words: Vec<_> = run.get_args().collect();
        // `ip netns exec` needs them: they go before the program itself.
        let mut command = Command::new(run.get_program());
        command.args(&words[..3]).args(["setpriv", "--bounding-set", missing, "--inh-caps", missing]);
        let said: Said = wait::output(command.args(&words[3..]))?.into();
        let complaint = "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON";
        said.refused(PORT, complaint).map_err(|e| format!("{missing}: {e}"))?;
    }
    Ok(())
}

/// Those of the unit with its drop-in. The buffers are within the usual limit of locked memory, 8 MiB.
fn capabilities_of_the_unit(network: &mut Network) -> TestResult {
    let [mut a, b] = ends(false, false, "mode = \"native\"\nzero_copy = \"off\"")?;
    a.gateway = "buffers = 1024".to_owned();
    let folder = network.folder_of(&a)?;
    let run = run_command(&network.a, &folder);
    let words: Vec<_> = run.get_args().collect();
    let mut command = Command::new(run.get_program());
    let kept = "-all,+net_admin,+net_raw,+bpf,+perfmon";
    command.args(&words[..3]).args(["setpriv", "--bounding-set", kept, "--inh-caps", kept]).args(&words[3..]);
    let mut first = Gateway::spawn(command, &folder)?;
    first.hears("READY=1")?;
    let second = network.folder_of(&b)?;
    let second = Gateway::start(&network.b, &second)?;
    let trips = ping(&network.left, "10.2.0.10".parse()?, 5, wait::PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} pings were lost\n{}", trips.lost, first.log()))?;
    let status = proc_file(first.process(), "status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t"));
    assert_eq!(effective, Some("0000000000001000"), "CAP_NET_ADMIN alone is kept");
    first.stop()?;
    second.stop()
}

fn busy(network: &mut Network) -> TestResult {
    let [a, _] = ends(false, false, NATIVE)?;
    let first = network.start_left(&a)?;
    let second = network.folder_of(&a)?;
    run_to_end(&network.a, &second)?.refused(PORT, "another program of XDP is attached to wan")?;
    first.stop()
}
