//! How long tunnels were without traffic after a restart of the gateway, which gateways say that run.

use super::gateway::control_of;
use super::host::Host;
use super::record::Record;
use crate::query::{DEFAULT_CONTROL, control_variable, renewal};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use testudo_control::service::api::ask;

/// Before the name of a gateway in the name of its service.
const SERVICE: &str = "testudo@";

/// The control sockets of the gateways that daemons were led to; without any, the one that other verbs ask.
pub fn controls(host: &Host, given: Option<&Path>, records: &[Record]) -> Vec<PathBuf> {
    if let Some(given) = given {
        return vec![given.to_owned()];
    }
    let services = records.iter().flat_map(|record| &record.services);
    let names = services.filter_map(|service| service.strip_prefix(SERVICE)?.strip_suffix(".service"));
    let mut controls: Vec<_> = names.map(|name| control_of(host, name)).collect();
    controls.sort();
    controls.dedup();
    if controls.is_empty() {
        controls.push(control_variable().unwrap_or_else(|| DEFAULT_CONTROL.into()));
    }
    controls
}

/// What the gateway at a control socket says, or why it says nothing.
pub fn of_gateway(host: &Host, control: &Path) -> Value {
    let asked = ask(&host.path(control), &json!({ "verb": "status" }));
    let (renewal, error) = match asked {
        Ok(status) => (status["ike"]["renewal"].clone(), Value::Null),
        Err(error) => (Value::Null, error.to_string().into()),
    };
    json!({ "control": control, "renewal": renewal, "error": error })
}

/// The same as a line.
pub fn line(gateway: &Value) -> String {
    let control = gateway["control"].as_str().unwrap_or_default();
    match (gateway["error"].as_str(), renewal(&gateway["renewal"])) {
        (Some(error), _) => format!("how long tunnels were without traffic is unknown: {error}"),
        (None, Some(renewal)) => format!("tunnels of the gateway at {control}: {renewal}"),
        (None, None) => {
            format!("tunnels of the gateway at {control}: no daemon had one before the gateway's start")
        }
    }
}
