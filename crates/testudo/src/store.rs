//! `testudo store …`: what the durable store remembers of keys. The gateway must not run, since it has the
//! store locked.

use crate::cli::{ConfigArgs, StoreForgetArgs, StoreListArgs, StoreVerb};
use crate::exit::{Failure, Kind, failure};
use crate::init::parse;
use crate::out::{errln, outln};
use crate::table::{cell, print};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use testudo_control::config::{Configuration, KnownAnswers, Loaded};
use testudo_control::{Fingerprint, Known, LeaseStore, Store};
use testudo_lab::table::Table;

/// Does what the verb says.
pub fn store(verb: &StoreVerb) -> Result<(), Failure> {
    match verb {
        StoreVerb::List(args) => list(args),
        StoreVerb::Forget(args) => forget(args),
        StoreVerb::Compact(args) => compact(args),
    }
}

fn open(config: &Path) -> Result<Store, Failure> {
    Store::open(&parse(config)?.gateway.state).map_err(failure(Kind::State))
}

fn load(config: &Path) -> Result<Loaded, Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    Configuration::load(config, KnownAnswers::Refuse, &environment)
        .map_err(|e| Failure::new(Kind::Configuration, format!("the configuration has errors\n{e}")))
}

/// What configured keys are for, by the fingerprints under which the store has them.
fn uses(loaded: &Loaded) -> HashMap<Fingerprint, String> {
    let mut uses = HashMap::new();
    for (tunnel, keys) in loaded.configuration.tunnels.iter().zip(&loaded.keys) {
        let (outbound, inbound) = keys.fingerprints(tunnel);
        for (key, direction) in
            [(inbound, "inbound"), (outbound, "outbound"), (keys.numbers(tunnel), "outbound")]
        {
            uses.insert(key, format!("{} {direction}", tunnel.name));
        }
    }
    uses
}

fn list(args: &StoreListArgs) -> Result<(), Failure> {
    let known = open(&args.config)?.known().map_err(failure(Kind::State))?;
    let uses = match load(&args.config) {
        Ok(loaded) => uses(&loaded),
        Err(_) => {
            errln!(
                "testudo: warning: the configured keys cannot be read (testudo check): they are listed as kept"
            );
            HashMap::new()
        }
    };
    let rows: Vec<Value> = known.iter().map(|known| row(known, &uses)).collect();
    if args.json {
        outln!("{}", Value::from(rows));
        return Ok(());
    }
    let columns = ["key", "state", "sa", "next_number", "highest_received", "packets", "bytes"];
    let mut table =
        Table::new(&columns.map(|column| column.replace('_', " ")).each_ref().map(String::as_str));
    rows.iter().for_each(|row| table.row(columns.iter().map(|column| cell(&row[column])).collect()));
    print(&table);
    Ok(())
}

fn row(known: &Known, uses: &HashMap<Fingerprint, String>) -> Value {
    let sa = uses.get(&known.fingerprint);
    let state = match (known.is_retired, sa) {
        (true, _) => "retired",
        (false, Some(_)) => "configured",
        (false, None) => "kept",
    };
    json!({
        "key": known.fingerprint.to_string(),
        "state": state,
        "sa": sa,
        "next_number": known.next,
        "highest_received": known.top,
        "packets": known.usage.map(|usage| usage.packets),
        "bytes": known.usage.map(|usage| usage.bytes),
    })
}

fn forget(args: &StoreForgetArgs) -> Result<(), Failure> {
    if !args.keys_are_destroyed {
        let message = "a forgotten key that is used again, by any gateway or from any copy, begins at number 1: its nonces \
                       repeat, which reveals its secrets (RFC 4106 2), and packets recorded before are accepted again \
                       (RFC 4303 3.4.3). If every copy of these keys is destroyed, say so: --keys-are-destroyed";
        return Err(Failure::new(Kind::Configuration, message));
    }
    let configured = load(&args.config)?.fingerprints();
    let store = open(&args.config)?;
    let known = store.known().map_err(failure(Kind::State))?;
    let mut chosen = Vec::new();
    for key in &args.keys {
        let found = known.iter().find(|known| known.fingerprint.to_string() == key.to_ascii_lowercase());
        match found {
            Some(found) if found.is_retired && !configured.contains(&found.fingerprint) => {
                chosen.push(found.fingerprint);
            }
            Some(_) => {
                let message = format!(
                    "key {key} is not retired, or is configured: remove its tunnel and run `testudo store compact` first"
                );
                return Err(Failure::new(Kind::Configuration, message));
            }
            None => {
                let message =
                    format!("the store has no key {key}: `testudo store list` shows those that it has");
                return Err(Failure::new(Kind::Configuration, message));
            }
        }
    }
    let forgotten = store.forget(&chosen).map_err(failure(Kind::State))?;
    chosen.iter().for_each(|key| outln!("forgotten: key {key}"));
    outln!("{forgotten} keys are forgotten: never use one of them again");
    Ok(())
}

fn compact(args: &ConfigArgs) -> Result<(), Failure> {
    let kept = load(&args.config)?.fingerprints();
    let store = open(&args.config)?;
    let retired = store.retire(&kept).map_err(failure(Kind::State))?;
    store.compact().map_err(failure(Kind::State))?;
    outln!("{retired} keys that are not configured were retired");
    Ok(())
}
