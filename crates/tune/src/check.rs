//! What is, beside what is wanted. Nothing is changed.

use crate::host::{Host, Reading};
use crate::plan::Plan;
use crate::report::{Outcome, Report, Row};
use crate::setting::Setting;

/// Compares the host with a plan.
#[must_use]
pub fn check(host: &dyn Host, plan: &Plan) -> Report {
    let mut report = Report::new(host.interface());
    report.rows.extend(plan.settings.iter().map(|setting| row(host, setting)));
    report.say(plan);
    report
}

fn row(host: &dyn Host, setting: &Setting) -> Row {
    match host.read(&setting.place) {
        Reading::Value(value) => {
            let is_met = setting.wanted.is_met(&value);
            Row::of(setting, if is_met { Outcome::AsWanted } else { Outcome::Differs }).values(&value, &value)
        }
        other => unchangeable(setting, &other),
    }
}

/// The row of what cannot change: as wanted if it is fixed to that.
pub(crate) fn unchangeable(setting: &Setting, reading: &Reading) -> Row {
    match reading {
        Reading::Fixed(value) if setting.wanted.is_met(value) => {
            Row::of(setting, Outcome::AsWanted).values(value, value)
        }
        Reading::Fixed(value) => Row::of(setting, Outcome::NotSupported)
            .values(value, value)
            .note(format!("it is fixed at {value}")),
        Reading::Absent(why) | Reading::Unreadable(why) => Row::of(setting, Outcome::NotSupported).note(why),
        Reading::Value(value) => Row::of(setting, Outcome::Differs).values(value, value),
    }
}
