//! The sentence that names the bottleneck, as `testudo top` has it.

use super::RECENT;
use crate::watch::{Change, Reading, bottleneck};
use serde_json::{Value, json};
use std::time::Instant;

/// What the last look has read.
#[derive(Debug, Default)]
pub(super) struct Sentence {
    last: Option<(Instant, Reading)>,
}

impl Sentence {
    /// `{kind, words}` of what happened since the last look, of an answer to `status` at `now`; null where no
    /// recent look has seen this gateway.
    pub(super) fn look(&mut self, status: &Value, now: Instant) -> Value {
        let Ok(reading) = Reading::parse(status) else {
            self.last = None;
            return Value::Null;
        };
        let recent = self.last.as_ref().filter(|(at, _)| now.saturating_duration_since(*at) <= RECENT);
        let change = recent.and_then(|(_, last)| Change::between(last, &reading));
        let told = change.map(|change| {
            let found = bottleneck(&change);
            json!({ "kind": found.kind(), "words": found.tell(&change, &reading) })
        });
        self.last = Some((now, reading));
        told.unwrap_or(Value::Null)
    }
}
