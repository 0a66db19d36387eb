//! `testudo policy add`, `replace` and `delete`.

use crate::cli::QueryArgs;
use crate::cli::policy::{PolicyAddArgs, PolicyDeleteArgs, PolicyReplaceArgs, PolicyWords};
use crate::exit::Failure;
use crate::firewall::follow;
use crate::out::{errln, outln};
use crate::query::Asked;
use serde_json::{Map, Value, json};
use testudo_lab::table::grouped;

/// `testudo policy add`
pub fn add(args: &PolicyAddArgs) -> Result<(), Failure> {
    let (before, after) = (&args.before, &args.after);
    let words = words(&args.words);
    change(&args.gateway, &json!({ "verb": "policy-add", "words": words, "before": before, "after": after }))
}

/// `testudo policy replace`
pub fn replace(args: &PolicyReplaceArgs) -> Result<(), Failure> {
    let words = words(&args.words);
    change(&args.gateway, &json!({ "verb": "policy-replace", "policy": args.policy, "words": words }))
}

/// `testudo policy delete`
pub fn delete(args: &PolicyDeleteArgs) -> Result<(), Failure> {
    change(&args.gateway, &json!({ "verb": "policy-delete", "policy": args.policy }))
}

fn words(words: &PolicyWords) -> Map<String, Value> {
    words.given().map(|(key, word)| (key.to_owned(), json!(word))).collect()
}

/// Has the change made, says what it was, and has the host's firewall follow.
fn change(gateway: &QueryArgs, request: &Value) -> Result<(), Failure> {
    let asked = Asked::find(gateway)?;
    let answer = asked.change(request)?;
    if gateway.json {
        outln!("{answer}");
    } else {
        outln!("{}, until the next reload or restart", answer["said"].as_str().unwrap_or_default());
        match answer["tunnels_that_end"].as_u64().unwrap_or(0) {
            0 => {}
            1 => outln!("1 tunnel that was populated for a flow of it ends"),
            ends => outln!("{} tunnels that were populated for flows of it end", grouped(ends)),
        }
        if let Some(warning) = answer["warning"].as_str() {
            errln!("warning: {warning}");
        }
    }
    follow(&asked, &answer)
}
