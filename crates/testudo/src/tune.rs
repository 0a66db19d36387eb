//! `testudo tune …`: the host's settings for an interface, seen, changed and taken back.

use crate::cli::tune::{TuneApplyArgs, TuneCheckArgs, TuneSinkArgs, TuneUndoArgs, TuneWishes};
use crate::exit::{Failure, Kind};
use crate::out::{errln, outln};
use crate::table::print;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;
use testudo_lab::table::Table;
use testudo_tune::believed::number;
use testudo_tune::ended::Ended;
use testudo_tune::error::TuneError;
use testudo_tune::ethtool::Ethtool;
use testudo_tune::folder::{self, Folder};
use testudo_tune::host::{Host, System};
use testudo_tune::journal::{Identity, Store, Stores};
use testudo_tune::measure::{Load, Streams, Verdict, Way, measure, verdict};
use testudo_tune::persist::{self, Reload};
use testudo_tune::plan::{Options, plan};
use testudo_tune::processors::list;
use testudo_tune::report::{Outcome, Report, Row};
use testudo_tune::setting::Group;
use testudo_tune::undo::Undo;

/// How long to wait for another `testudo tune`.
const WAIT: Duration = Duration::from_secs(5);
const WAIT_AT_BOOT: Duration = Duration::from_secs(60);

/// `testudo tune check`
pub fn check(args: &TuneCheckArgs) -> Result<(), Failure> {
    refuse_what_is_left_out(&args.wishes)?;
    let host = host(&args.interface)?;
    let report = testudo_tune::check::check(&host, &plan(&host, &options(&args.wishes)));
    if args.json {
        print_json(&report, None);
    } else {
        print(&check_table(&report));
    }
    let differing = report.rows.iter().filter(|row| row.outcome == Outcome::Differs).count();
    if differing == 0 {
        return unless_refused(&report, REFUSED);
    }
    if !args.json {
        errln!("{differing} settings differ: `testudo tune apply {}` changes them", args.interface);
    }
    Err(Failure::silent(Kind::Other))
}

/// `testudo tune apply`
pub fn apply(args: &TuneApplyArgs) -> Result<(), Failure> {
    refuse_what_is_left_out(&args.wishes)?;
    let host = host(&args.interface)?;
    // At boot the units of several interfaces begin at once.
    let wait = if args.persisted { WAIT_AT_BOOT } else { WAIT };
    let folder = Folder::open_within(&args.state.state, wait).map_err(failure)?;
    let options =
        if args.persisted { folder.kept(&args.interface).map_err(failure)? } else { options(&args.wishes) };
    let plan = plan(&host, &options);
    // Only then: who may change nothing of the machine may not open that folder, either.
    let changes_the_machine = plan.settings.iter().any(|setting| setting.place.is_machines());
    let machines = changes_the_machine.then(|| folder_of_the_machine(&host, wait)).transpose()?;
    // A sink that is not there is noticed before anything changes.
    let measured = Measured::before(&host, args)?;
    if args.persist {
        testudo_tune::apply::admit(&host, stores(&folder, &machines), &plan).map_err(failure)?;
        keep(&folder, &args.interface, &options)?;
        tell_systemd();
    }
    let (report, ended) = match testudo_tune::apply::apply(&host, stores(&folder, &machines), &plan) {
        Ok(report) => (report, None),
        Err(TuneError::Partly { report, why }) => (*report, Some(ended_early(*why, &args.interface))),
        Err(error) => return Err(failure(error)),
    };
    let (measured, failed) = match measured {
        Some(measured) if ended.is_none() && report.has(Outcome::Changed) => measured.after(&host),
        measured => (measured, None),
    };
    if args.json {
        print_json(&report, measured.as_ref());
    } else {
        print(&change_table(&report, "wanted"));
        if args.persist {
            outln!("{} applies this again at boot", persist::unit(&args.interface));
        }
        measured.inspect(Measured::print);
    }
    ended.or(failed).map_or(Ok(()), Err)?;
    unless_refused(&report, REFUSED)
}

/// Why an apply has ended before all was done.
fn ended_early(why: TuneError, interface: &str) -> Failure {
    failure(why)
        .explained(|why| format!("{why}; `testudo tune undo {interface}` takes back what was changed before"))
}

/// Has systemd apply these options at boot. What it refuses is noticed before anything changes.
fn keep(folder: &Folder, interface: &str, options: &Options) -> Result<(), Failure> {
    let earlier = folder.kept(interface).ok();
    folder.keep(interface, options).map_err(failure)?;
    persist::enable(Path::new("/"), interface).map_err(|error| {
        // That error counts. What was kept before stays.
        let _ = earlier.map_or_else(|| folder.forget(interface), |earlier| folder.keep(interface, &earlier));
        failure(error)
    })
}

/// What is persisted counts for this boot, too, where an interface goes and comes again.
fn tell_systemd() {
    match persist::reload(Path::new("/"), Path::new("systemctl")) {
        Reload::Done => {}
        Reload::NotRunning => errln!("systemd does not run here: it reads its units when it starts"),
        Reload::Failed(why) => {
            errln!("systemd knows of this after a reboot, or `systemctl daemon-reload`, which failed: {why}");
        }
    }
}

/// The folder of what is the machine's, whichever folder the interface's own state has.
fn folder_of_the_machine(host: &dyn Host, wait: Duration) -> Result<Folder, Failure> {
    let namespace = Identity::of(host).namespace;
    Folder::of_the_machine(Path::new(folder::MACHINE), number(&namespace), wait).map_err(failure)
}

fn stores<'a>(folder: &'a Folder, machines: &'a Option<Folder>) -> Stores<'a> {
    Stores { namespace: folder, machine: machines.as_ref().map(|folder| folder as &dyn Store) }
}

/// `testudo tune undo`
pub fn undo(args: &TuneUndoArgs) -> Result<(), Failure> {
    let device = Ethtool::open(&args.interface).map_err(failure)?;
    let host = System::without_interface("/", &args.interface, device).map_err(failure)?;
    let folder = Folder::open_within(&args.state.state, WAIT).map_err(failure)?;
    let ended = args.namespace.as_ref().map(|namespace| {
        Ended::new(&host, namespace).ok_or_else(|| {
            let text = format!("network namespace {namespace} has not ended: run `testudo tune undo` there");
            Failure::new(Kind::State, text)
        })
    });
    let ended = ended.transpose()?;
    let host: &dyn Host = ended.as_ref().map_or(&host as &dyn Host, |ended| ended as &dyn Host);
    // If there is none, nothing of the machine was changed since it booted.
    let is_there = Path::new(folder::MACHINE).symlink_metadata().is_ok();
    // What this cannot have back does not keep the interface's own settings.
    let (machines, no_machine) = match is_there.then(|| folder_of_the_machine(host, WAIT)).transpose() {
        Ok(machines) => (machines, None),
        Err(failure) => (None, Some(failure)),
    };
    let undo = Undo::read(host, stores(&folder, &machines));
    // Before anything ends: this may be the wrong place. What cannot be read is to be applied no more,
    // either.
    let is_elsewhere = undo.as_ref().is_err_and(TuneError::is_elsewhere);
    let was_persisted = !is_elsewhere && ended.is_none() && not_persisted_any_more(&folder, args)?;
    if was_persisted && !args.json {
        outln!("{} applies nothing at boot any more", persist::unit(&args.interface));
    }
    let (report, refusal) = match undo.and_then(Undo::run) {
        Ok(report) => (report, no_machine),
        Err(TuneError::Partly { report, why }) => (*report, Some(failure(*why))),
        Err(error) => return Err(failure(error)),
    };
    said(&report, args, refusal)
}

/// First, so that a reboot in the middle of the rest ends it. Only the default folder is what the unit reads.
fn not_persisted_any_more(folder: &Folder, args: &TuneUndoArgs) -> Result<bool, Failure> {
    let was_persisted = args.state.state == Path::new(folder::DEFAULT)
        && persist::disable(Path::new("/"), &args.interface).map_err(failure)?;
    folder.forget(&args.interface).map_err(failure)?;
    if was_persisted {
        tell_systemd();
    }
    Ok(was_persisted)
}

/// Says what was undone, and fails where that was not all.
fn said(report: &Report, args: &TuneUndoArgs, refusal: Option<Failure>) -> Result<(), Failure> {
    if args.json {
        print_json(report, None);
    } else if !report.rows.is_empty() {
        print(&change_table(report, "original"));
    } else if refusal.is_none() {
        outln!("nothing is to be undone for {}", args.interface);
    }
    // The kernel is not the only reason: each row has its own.
    refusal.map_or_else(|| unless_refused(report, "not brought back"), Err)
}

/// `testudo tune sink`
pub fn sink(args: &TuneSinkArgs) -> Result<(), Failure> {
    let failure = failure_of_port(args.listen);
    let listener = TcpListener::bind(args.listen).map_err(&failure)?;
    let listens = listener.local_addr().map_err(&failure)?;
    outln!("takes streams at {listens}: `testudo tune apply INTERFACE --measure {listens}` at the other end");
    testudo_tune::measure::sink(&listener).map_err(&failure)
}

fn failure_of_port(address: SocketAddr) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(Kind::Port, format!("{address}: {error}"))
}

/// How many streams count, before and after.
const STREAMS: u32 = 5;

/// What was measured, and with what.
struct Measured {
    load: Load,
    there: BeforeAndAfter,
    /// `None` if the sink sends nothing back.
    back: Option<BeforeAndAfter>,
}

/// Streams of one way.
struct BeforeAndAfter {
    before: Streams,
    after: Option<Streams>,
}

impl Measured {
    fn before(host: &System<Ethtool>, args: &TuneApplyArgs) -> Result<Option<Self>, Failure> {
        let Some(to) = args.measure else { return Ok(None) };
        let load = Load { to, streams: STREAMS, each: args.measure_seconds };
        let [there, back] = both(host, &load)?;
        let none = || failure(TuneError::Measurement(format!("no stream was sent to {to}")));
        let of = |before| BeforeAndAfter { before, after: None };
        Ok(Some(Self { load, there: of(there.ok_or_else(none)?), back: back.map(of) }))
    }

    /// With what was measured afterwards, or why it was not: what was applied is there all the same.
    fn after(mut self, host: &System<Ethtool>) -> (Option<Self>, Option<Failure>) {
        match both(host, &self.load) {
            Ok([there, back]) => {
                self.there.after = there;
                if let Some(of_back) = &mut self.back {
                    of_back.after = back;
                }
                (Some(self), None)
            }
            Err(error) => (Some(self), Some(error)),
        }
    }

    fn json(&self) -> Value {
        json!({
            "to": self.load.to,
            "seconds_each": self.load.each.as_secs_f64(),
            "sent": self.there.json(),
            "received": self.back.as_ref().map(BeforeAndAfter::json),
        })
    }

    fn print(&self) {
        let (to, seconds) = (self.load.to, self.load.each.as_secs_f64());
        outln!("TCP, Gbit/s, {STREAMS} streams of {seconds} s each way");
        outln!("sent to {to}:");
        self.there.print();
        match &self.back {
            Some(back) => {
                outln!("received from {to}:");
                back.print();
            }
            None => {
                outln!("received from {to}: not measured: it sends nothing back (`testudo tune sink` does)")
            }
        }
    }
}

/// Streams there and back.
fn both(host: &System<Ethtool>, load: &Load) -> Result<[Option<Streams>; 2], Failure> {
    let there = measure(host, load, Way::There).map_err(failure)?;
    Ok([there, measure(host, load, Way::Back).map_err(failure)?])
}

impl BeforeAndAfter {
    fn json(&self) -> Value {
        json!({
            "before": self.before,
            "after": self.after,
            "verdict": self.after.as_ref().map(|after| verdict(&self.before, after)),
        })
    }

    fn print(&self) {
        let line = |streams: &Streams| {
            format!("median {:.3}, {:.3} to {:.3}", streams.median, streams.least, streams.most)
        };
        outln!("  before  {}", line(&self.before));
        let Some(after) = &self.after else {
            outln!("  after   not measured: there is nothing to compare");
            return;
        };
        outln!("  after   {}", line(after));
        let change = (after.median / self.before.median - 1.0) * 100.0;
        match verdict(&self.before, after) {
            Verdict::Faster => {
                outln!("  faster: the median by {change:.1} %, and each stream than all before")
            }
            Verdict::Slower => {
                outln!("  slower: the median by {:.1} %, and each stream than all before", -change)
            }
            Verdict::NoDifferenceBeyondTheSpread => outln!("  no difference beyond the spread"),
        }
    }
}

fn host(interface: &str) -> Result<System<Ethtool>, Failure> {
    let device = Ethtool::open(interface).map_err(failure)?;
    System::new("/", interface, device).map_err(failure)
}

fn options(wishes: &TuneWishes) -> Options {
    let isolate = wishes.isolate.as_deref().map(list).unwrap_or_default();
    Options { mtu: wishes.mtu, huge_pages: wishes.huge_pages, isolate, only: wishes.only.clone() }
}

/// A wish of a group that is not among those of `--only` would be dropped without a word.
fn refuse_what_is_left_out(wishes: &TuneWishes) -> Result<(), Failure> {
    let groups_of: [(&str, bool, &[Group]); 3] = [
        ("--mtu", wishes.mtu.is_some(), &[Group::Mtu]),
        ("--huge-pages", wishes.huge_pages.is_some(), &[Group::HugePages]),
        ("--isolate", wishes.isolate.is_some(), &[Group::Isolation, Group::Affinity]),
    ];
    let is_left_out = |groups: &[Group]| !groups.iter().any(|group| wishes.only.contains(group));
    for (option, is_given, groups) in groups_of {
        if is_given && !wishes.only.is_empty() && is_left_out(groups) {
            let names: Vec<&str> = groups.iter().map(|group| group.name()).collect();
            let text = format!("{option} is of the group {}, which --only leaves out", names.join(" or "));
            return Err(Failure::new(Kind::Configuration, text));
        }
    }
    Ok(())
}

const REFUSED: &str = "the kernel refused";

/// Fails by name where anything was refused, which `how` says, or cannot be had.
fn unless_refused(report: &Report, how: &str) -> Result<(), Failure> {
    let texts = [(Outcome::Refused, how), (Outcome::NotPossible, "not possible here")];
    let texts = texts.into_iter().filter_map(|(outcome, text)| {
        let rows = report.rows.iter().filter(|row| row.outcome == outcome);
        let names: Vec<&str> = rows.map(|row| row.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("{text}: {}", names.join(", ")))
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() { Ok(()) } else { Err(Failure::new(Kind::Other, texts.join("; "))) }
}

fn print_json(report: &Report, measured: Option<&Measured>) {
    let mut all = json!(report);
    if let Some(measured) = measured {
        all["measurement"] = measured.json();
    }
    outln!("{all}");
}

fn failure(error: TuneError) -> Failure {
    Failure::new(kind(&error), error)
}

/// Says who can help: root, who looks after the state, or who named the interface.
fn kind(error: &TuneError) -> Kind {
    match error {
        TuneError::OfAnother(why) => kind(why),
        TuneError::NoInterface(_) | TuneError::Ethtool { .. } => Kind::Port,
        TuneError::File { source, .. } if source.kind() == ErrorKind::PermissionDenied => Kind::Port,
        TuneError::Busy(_)
        | TuneError::Untrusted { .. }
        | TuneError::Damaged { .. }
        | TuneError::TooLong(_)
        | TuneError::NoBoot
        | TuneError::File { .. }
        | TuneError::Renamed { .. }
        | TuneError::OtherNamespace { .. } => Kind::State,
        _ => Kind::Other,
    }
}

fn check_table(report: &Report) -> Table {
    let mut table = Table::new(&["setting", "now", "wanted", "result"]);
    for row in &report.rows {
        let why = row.why.filter(|_| row.outcome == Outcome::Differs);
        let result = why.map_or_else(|| result(row), |why| format!("{}: {why}", result(row)));
        table.row(vec![row.name.clone(), dash(&row.before), dash(&row.wanted), result]);
    }
    table
}

fn change_table(report: &Report, wanted: &str) -> Table {
    let mut table = Table::new(&["setting", "before", wanted, "after", "result"]);
    for row in &report.rows {
        let values = [&row.before, &row.wanted, &row.after].map(dash);
        table.row([row.name.clone()].into_iter().chain(values).chain([result(row)]).collect());
    }
    table
}

fn dash(value: &Option<String>) -> String {
    value.clone().unwrap_or_else(|| "-".to_owned())
}

fn result(row: &Row) -> String {
    let of_the_device = [Group::Offloads, Group::Rings, Group::Coalescing, Group::Napi, Group::Mtu];
    let word = match row.outcome {
        Outcome::AsWanted => "as wanted",
        Outcome::Differs => "differs",
        Outcome::Changed => "changed",
        Outcome::NotSupported if row.group.is_some_and(|group| of_the_device.contains(&group)) => {
            "not supported by the device"
        }
        Outcome::NotSupported => "not supported here",
        // Rows of undo are of no group.
        Outcome::Refused if row.group.is_none() => "not brought back",
        Outcome::Refused => "refused by the kernel",
        Outcome::NotPossible => "not possible here",
        Outcome::Advice => "advice",
        Outcome::Restored => "as it was",
        Outcome::Kept => "kept",
        Outcome::Gone => "gone",
    };
    row.note.as_ref().map_or_else(|| word.to_owned(), |note| format!("{word}: {note}"))
}
