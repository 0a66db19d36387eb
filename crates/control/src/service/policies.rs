//! Policies that come and go while a gateway runs: `policy add`, `replace` and `delete`.
//!
//! ```text
//! client ─► control thread ─► main thread ─► configuration in force, copy of the SPD, selectors of SAs,
//! routes
//!                                    └───────► worker: one change between two batches of packets
//! ```
//!
//! The main thread makes each change, one at a time, as it makes reloads: so no change falls into one. It
//! changes its own copy of the SPD first, which gives the new policy the same name as the worker's
//! ([`Spd::change`](testudo_ipsec::Spd::change)); where that refuses, nothing has happened.
//!
//! An SA delivers what its selectors allow (RFC 4301 5.2). They are widened before a policy is added, and
//! narrowed after one is removed: no packet meets the new policy under the old selectors.
//!
//! Such policies are not in the configuration file: a reload or a restart puts the file's in force, which the
//! log says.

use super::assemble;
use super::installed::InstalledTunnels;
use crate::config::{self, ConfigErrors, Configuration};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use testudo_gateway::{Commander, Update};
use testudo_ipsec::{PolicyChange, PolicyId, Position, Spd, TunnelIndex};

/// How long a client waits for the main thread, which may be storing windows.
const PATIENCE: Duration = Duration::from_secs(4);

/// A change that a client asks for, and where the answer goes.
#[derive(Debug)]
pub struct ChangeRequest {
    /// The request, as it came.
    pub request: Value,
    /// The answer, or why there is none.
    pub reply: SyncSender<Result<Value, String>>,
}

/// Hands requests to the thread that makes changes.
pub struct Changer(Box<dyn Fn(ChangeRequest) -> bool + Send + Sync>);

impl Changer {
    /// `send` returns `false` if requests are not taken now.
    pub fn new(send: impl Fn(ChangeRequest) -> bool + Send + Sync + 'static) -> Self {
        Self(Box::new(send))
    }
}

impl std::fmt::Debug for Changer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Changer")
    }
}

/// Has a change made, and waits for its outcome.
///
/// # Errors
/// Why it was not made, for a client.
pub fn ask(changer: &Changer, request: &Value) -> Result<Value, String> {
    let (reply, answer) = sync_channel(1);
    if !changer.0(ChangeRequest { request: request.clone(), reply }) {
        return Err("the gateway is busy: try again".to_owned());
    }
    let outcome = answer.recv_timeout(PATIENCE);
    outcome
        .map_err(|_| "the gateway is busy: see with `policy list` whether the change was made".to_owned())?
}

/// A change that was checked, and the state after it.
#[derive(Debug)]
pub struct Planned {
    /// What is in force then.
    pub next: InstalledTunnels,
    /// The change of the worker's SPD.
    pub change: PolicyChange,
    /// What is said about it.
    pub said: String,
    /// Tunnels whose packets other policies name then.
    tunnels: Vec<usize>,
}

/// Checks a request against what is in force.
///
/// # Errors
/// What is wrong, in words.
pub fn plan(installed: &InstalledTunnels, request: &Value) -> Result<Planned, String> {
    let configuration = &installed.configuration;
    let named = |key: &str| find(configuration, request[key].as_str().unwrap_or_default());
    match request["verb"].as_str() {
        Some("policy-add") => {
            let place = place(configuration, request)?;
            let policy = read(configuration, request, place, None)?;
            let policy = config::Policy { number: next_number(configuration), ..policy };
            add(installed, policy, place)
        }
        Some("policy-replace") => {
            let place = named("policy")?;
            let policy = read(configuration, request, place, Some(place))?;
            replace(installed, policy, place)
        }
        Some("policy-delete") => delete(installed, named("policy")?),
        _ => Err("unknown verb".to_owned()),
    }
}

/// The policy of a request, in words of the configuration.
fn read(
    configuration: &Configuration,
    request: &Value,
    place: usize,
    replaced: Option<usize>,
) -> Result<config::Policy, String> {
    let Some(words) = request["words"].as_object() else {
        return Err("words: expected an object".to_owned());
    };
    let mut text = String::new();
    for (key, value) in words {
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let Some(value) = value.as_str().filter(|_| is_key) else {
            return Err("words: expected strings, under keys of [[policy]]".to_owned());
        };
        // A string of JSON is one of TOML.
        let _ = writeln!(text, "{key} = {}", json!(value));
    }
    configuration.read_policy(&text, place, replaced).map_err(|errors| in_a_line(&errors))
}

/// Errors for somebody who typed the words on one line, where lines and columns say nothing.
fn in_a_line(errors: &ConfigErrors) -> String {
    let of = |error: &config::ConfigError| {
        let key = error.key.split_once('.').map_or("policy", |(_, key)| key);
        let help = error.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
        format!("{key}: expected {}, found {}{help}", error.expected, error.found)
    };
    errors.errors().iter().map(of).collect::<Vec<_>>().join("\n")
}

/// The place of a policy by name or number.
fn find(configuration: &Configuration, label: &str) -> Result<usize, String> {
    let is_named = |policy: &config::Policy| policy.name.as_deref() == Some(label);
    let number: Option<u32> = label.parse().ok();
    let is_numbered = |policy: &config::Policy| policy.name.is_none() && Some(policy.number) == number;
    let policies = &configuration.policies;
    let found = policies.iter().position(is_named).or_else(|| policies.iter().position(is_numbered));
    found.ok_or_else(|| {
        let labels = policies.iter().map(config::Policy::label);
        let meant = config::did_you_mean(label, labels.collect::<Vec<_>>().iter().map(String::as_str));
        let help = meant.unwrap_or_else(|| "`testudo policy list` shows them".to_owned());
        format!("there is no policy \"{label}\" that could be changed; {help}")
    })
}

/// Where a new policy goes; without a word, after all others, and before the selectors of tunnels.
fn place(configuration: &Configuration, request: &Value) -> Result<usize, String> {
    match (&request["before"], &request["after"]) {
        (Value::Null, Value::Null) => Ok(configuration.policies.len()),
        (Value::String(label), Value::Null) => find(configuration, label),
        (Value::Null, Value::String(label)) => Ok(find(configuration, label)? + 1),
        _ => Err("either before or after another policy".to_owned()),
    }
}

/// A number that no policy of this configuration had.
fn next_number(configuration: &Configuration) -> u32 {
    configuration.policies.iter().map(|policy| policy.number).max().unwrap_or(0) + 1
}

/// The name of the policy at a place of the SPD.
fn id_at(spd: &Spd, place: usize) -> Option<PolicyId> {
    spd.policies().nth(place).map(|(id, _)| id)
}

fn add(installed: &InstalledTunnels, policy: config::Policy, place: usize) -> Result<Planned, String> {
    let position = match id_at(&installed.spd, place) {
        Some(next) => Position::Before(next),
        None => Position::Last,
    };
    let entry = assemble::policy(&policy, &installed.indices());
    let mut next = installed.clone();
    let said = format!("policy {} is in force", policy.label());
    let tunnels = policy.tunnel().into_iter().collect();
    next.configuration.policies.insert(place, policy);
    next.planned(PolicyChange::Insert(position, entry), said, tunnels)
}

fn replace(installed: &InstalledTunnels, policy: config::Policy, place: usize) -> Result<Planned, String> {
    let (id, old) = (id_at(&installed.spd, place), installed.configuration.policies.get(place));
    let (Some(id), Some(old)) = (id, old) else { return Err("there is no such policy".to_owned()) };
    let name = policy.name.clone().or_else(|| old.name.clone());
    let policy = config::Policy { name, number: old.number, ..policy };
    let tunnels = [old.tunnel(), policy.tunnel()].into_iter().flatten().collect();
    let said = format!("policy {} is replaced", old.label());
    let entry = assemble::policy(&policy, &installed.indices());
    let mut next = installed.clone();
    next.configuration.policies[place] = policy;
    next.planned(PolicyChange::Replace(id, entry), said, tunnels)
}

fn delete(installed: &InstalledTunnels, place: usize) -> Result<Planned, String> {
    let Some(id) = id_at(&installed.spd, place) else { return Err("there is no such policy".to_owned()) };
    let mut next = installed.clone();
    let policy = next.configuration.policies.remove(place);
    let said = format!("policy {} is deleted", policy.label());
    next.planned(PolicyChange::Remove(id), said, policy.tunnel().into_iter().collect())
}

impl InstalledTunnels {
    /// The indices of the tunnels, in the order of the configuration.
    fn indices(&self) -> Vec<TunnelIndex> {
        self.tunnels.iter().map(|running| running.index).collect()
    }

    /// Makes the change in the copy of the SPD.
    fn planned(mut self, change: PolicyChange, said: String, tunnels: Vec<usize>) -> Result<Planned, String> {
        Arc::make_mut(&mut self.spd).change(change.clone()).map_err(|error| error.to_string())?;
        Ok(Planned { next: self, change, said, tunnels })
    }
}

impl Planned {
    /// Puts it in force. `old` is what was before.
    ///
    /// # Errors
    /// The worker does not take it; then nothing has changed but that SAs may deliver more than before, which
    /// the SPD still refuses.
    pub fn carry_out(&self, old: &Configuration, commander: &Commander) -> Result<(), String> {
        let told = |error: testudo_gateway::CommanderError| error.to_string();
        let select = |selectors| commander.update(Update { selectors, ..Update::default() }).map_err(told);
        let index = |tunnel: usize| self.next.tunnels.get(tunnel).map(|running| running.index);
        let now = &self.next.configuration;
        let wide = self.tunnels.iter().filter_map(|&tunnel| {
            let before = assemble::tunnel_selectors(old, tunnel);
            let after = assemble::tunnel_selectors(now, tunnel);
            Some((index(tunnel)?, before.iter().chain(after.iter()).copied().collect()))
        });
        let narrow = self.tunnels.iter();
        let narrow =
            narrow.filter_map(|&tunnel| Some((index(tunnel)?, assemble::tunnel_selectors(now, tunnel))));
        let (wide, narrow): (Vec<_>, Vec<_>) = (wide.collect(), narrow.collect());
        if !wide.is_empty() {
            select(wide)?;
        }
        let outcome = commander.change_policies(vec![self.change.clone()]).map_err(told)?;
        if let Some(Err(error)) = outcome.first() {
            return Err(error.to_string());
        }
        if !narrow.is_empty() {
            select(narrow)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use testudo_ipsec::{Action, Verdict};

    const POLICIES: &str = "[[policy]]\nname = \"mail\"\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n\
                            [[policy]]\naction = \"discard\"\nremote = \"10.3.0.0/16\"\n";

    /// What is in force under [`POLICIES`], with the tunnels of a configuration that are not installed.
    fn installed() -> InstalledTunnels {
        let configuration = Configuration::parse(&format!("{POLICIES}{MINIMAL}"), "t.toml").unwrap();
        let spd = Arc::new(assemble::policies(&configuration, &[TunnelIndex(0)]));
        let mut installed = InstalledTunnels::empty(configuration);
        installed.spd = spd;
        installed
    }

    fn labels(installed: &InstalledTunnels) -> Vec<String> {
        installed.configuration.policies.iter().map(config::Policy::label).collect()
    }

    /// The policies after some requests, each of which succeeds.
    fn after(requests: &[Value]) -> InstalledTunnels {
        requests.iter().fold(installed(), |installed, request| plan(&installed, request).unwrap().next)
    }

    fn added(more: &Value) -> Value {
        let mut request = json!({
            "verb": "policy-add", "words": { "action": "discard", "protocol": "udp", "remote_ports": "53, 5353" },
        });
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        request
    }

    #[test]
    fn a_policy_goes_where_it_is_told_and_before_the_selectors_of_tunnels() {
        for (place, expected) in [
            (json!({}), ["mail", "2", "3"]),
            (json!({ "before": "mail" }), ["3", "mail", "2"]),
            (json!({ "after": "mail" }), ["mail", "3", "2"]),
            (json!({ "before": "2" }), ["mail", "3", "2"]),
        ] {
            let installed = after(&[added(&place)]);
            assert_eq!(labels(&installed), expected);
            // The SPD has the same order, and the tunnel's selectors at its end.
            let actions = installed.spd.policies().map(|(_, policy)| policy.action);
            let configured = installed.configuration.policies.iter().map(|policy| policy.selectors.len());
            let lengths = installed.spd.policies().map(|(_, policy)| policy.selectors.len());
            assert!(lengths.eq(configured.chain([1])));
            assert_eq!(actions.last(), Some(Action::Protect(TunnelIndex(0))));
        }
    }

    #[test]
    fn numbers_are_given_once_and_stay() {
        let delete = |label: &str| json!({ "verb": "policy-delete", "policy": label });
        let installed = after(&[added(&json!({ "before": "mail" })), delete("2")]);
        assert_eq!(labels(&installed), ["3", "mail"]);
        assert!(plan(&installed, &delete("2")).unwrap_err().contains("there is no policy \"2\""));
        let replace = json!({ "verb": "policy-replace", "policy": "mail", "words": { "action": "discard", "protocol": "gre" } });
        let replaced = plan(&installed, &replace).unwrap().next;
        assert_eq!(labels(&replaced), ["3", "mail"]);
        assert_eq!(
            replaced.spd.policies().nth(1).unwrap().1.selectors[0].to_string(),
            "any <-> any protocol 47"
        );
    }

    #[test]
    fn what_a_tunnel_delivers_follows_the_policies_that_name_it() {
        let words = json!({ "action": "protect", "tunnel": "site-b", "remote": "10.9.0.0/16" });
        let request = json!({ "verb": "policy-add", "words": words });
        let planned = plan(&installed(), &request).unwrap();
        assert_eq!(planned.tunnels, [0]);
        let selectors = |configuration| {
            assemble::tunnel_selectors(configuration, 0).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            selectors(&planned.next.configuration),
            ["any <-> 10.9.0.0/16", "10.1.0.0/16 <-> 10.2.0.0/16"]
        );
        let deleted = plan(&planned.next, &json!({ "verb": "policy-delete", "policy": "3" })).unwrap();
        assert_eq!(selectors(&deleted.next.configuration), ["10.1.0.0/16 <-> 10.2.0.0/16"]);
        assert_eq!(deleted.tunnels, [0]);
    }

    #[test]
    fn a_request_that_is_wrong_is_told_what_is() {
        let wrong = |request: &Value| plan(&installed(), request).unwrap_err();
        let words = |words: Value| json!({ "verb": "policy-add", "words": words });
        for (request, expected) in [
            (words(json!(7)), "words: expected an object"),
            (words(json!({ "remote": 7 })), "expected strings"),
            (words(json!({ "a = 1\nremote": "any" })), "under keys of [[policy]]"),
            (words(json!({ "remote": "any" })), "action: expected the key `action`"),
            (words(json!({ "action": "discard", "remote": "10.3.0.0/33" })), "remote: expected an address"),
            (words(json!({ "action": "discard", "remote": "10.3.4.0/24" })), "with --before 2"),
            (words(json!({ "action": "discard", "ports": "25" })), "ports: expected a known key"),
            (
                words(json!({ "action": "protect", "tunnel": "site-b", "remote": "192.0.2.2" })),
                "a peer's own outer address",
            ),
            (
                words(json!({ "action": "protect", "tunnel": "x\"\ny = \"z", "remote": "10.9.0.0/16" })),
                "the name of a tunnel",
            ),
            (added(&json!({ "before": "mail", "after": "2" })), "either before or after"),
            (added(&json!({ "before": "mial" })), "did you mean `mail`?"),
            (json!({ "verb": "policy-add" }), "words: expected an object"),
            (json!({ "verb": "policy-delete", "policy": 2 }), "there is no policy"),
        ] {
            let said = wrong(&request);
            assert!(said.contains(expected), "{request}: {said}");
        }
    }

    /// Its selectors and place decide at once in the copy that clients are told about.
    #[test]
    fn the_copy_of_the_spd_decides_as_the_worker_will() {
        let installed = after(&[added(&json!({ "before": "mail" }))]);
        let fields = Some(testudo_wire::next_layer::NextLayerFields::Ports(1, 5353));
        let ends = ("10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
        let flow = testudo_ipsec::Flow::new(testudo_ipsec::Direction::Outbound, ends.0, ends.1, 17, fields);
        assert_eq!(installed.spd.lookup(&flow).0, Verdict::Policy(Action::Discard));
    }
}
