//! `testudo top`: what a running gateway does now, and what its bottleneck is.
//!
//! Everything is computed from two readings of its status ([`testudo_control::watch`]).

mod screen;
mod view;

use crate::cli::TopArgs;
use crate::exit::{Failure, Kind, failure};
use crate::out::{errln, outln};
use crate::query::Asked;
use screen::{Screen, Wake};
use serde_json::json;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use testudo_control::watch::{Change, Reading};
use view::Picture;

/// `testudo top`
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let mut watch = Watch { gateway: Asked::find(&args.gateway)?, interval: args.interval, last: None };
    watch.read()?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let is_live = !args.gateway.json && args.count.is_none() && !is_dumb && io::stdout().is_terminal();
    if is_live { live(&mut watch) } else { print(&mut watch, args) }
}

/// A gateway that is polled.
struct Watch {
    gateway: Asked,
    interval: Duration,
    last: Option<(Instant, Reading)>,
}

fn ask_status(gateway: &Asked) -> Result<Reading, Failure> {
    let status = gateway.ask(&json!({ "verb": "status" }))?;
    Reading::parse(&status).map_err(failure(Kind::Unreachable))
}

impl Watch {
    /// Takes a reading. Returns the change since the last one, unless this is the first one or another
    /// gateway answers now.
    fn read(&mut self) -> Result<Option<(Change, Reading)>, Failure> {
        let reading = ask_status(&self.gateway)?;
        let change = self.last.as_ref().and_then(|(_, last)| Change::between(last, &reading));
        // Intervals are counted from when a reading was due, so that query times do not add up, unless that
        // is long past.
        let now = Instant::now();
        let due = self.due().filter(|due| now < *due + self.interval).unwrap_or(now);
        self.last = Some((due, reading.clone()));
        Ok(change.map(|change| (change, reading)))
    }

    fn due(&self) -> Option<Instant> {
        self.last.as_ref().map(|(at, _)| *at + self.interval)
    }

    /// Time until the next reading.
    fn remaining(&self) -> Duration {
        self.due().map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()))
    }
}

/// Prints one snapshot below the other.
fn print(watch: &mut Watch, args: &TopArgs) -> Result<(), Failure> {
    let mut left = args.count;
    let mut is_first = true;
    while left != Some(0) {
        std::thread::sleep(watch.remaining());
        let Some((change, reading)) = watch.read()? else {
            errln!("testudo: the gateway was restarted");
            continue;
        };
        if args.gateway.json {
            outln!("{}", view::json(&change, &reading));
        } else {
            let text = Picture::of(&change, &reading).lines().join("\n");
            outln!("{}{text}", if is_first { "" } else { "\n" });
        }
        is_first = false;
        left = left.map(|n| n - 1);
    }
    Ok(())
}

/// Draws snapshots on the terminal until the user quits.
fn live(watch: &mut Watch) -> Result<(), Failure> {
    let terminal = |error: io::Error| Failure::new(Kind::Other, format!("terminal: {error}"));
    let mut screen = Screen::open().map_err(terminal)?;
    let first = format!("first figures in {:.1} s; q quits", watch.interval.as_secs_f64());
    let mut picture = Picture::message(&first);
    loop {
        let (columns, rows) = screen.size();
        screen.draw(&picture.fitted(columns, rows)).map_err(terminal)?;
        match screen.wait(watch.remaining()).map_err(terminal)? {
            Wake::Quit => return Ok(()),
            Wake::Redraw => {}
            Wake::Time => match watch.read()? {
                Some((change, reading)) => picture = Picture::of(&change, &reading),
                None => picture = Picture::message("the gateway was restarted"),
            },
        }
    }
}
