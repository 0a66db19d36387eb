//! Policies that come and go while a gateway runs: `policy add`, `replace` and `delete`.
//!
//! ```text
//! client ─► control thread ─► main thread ─► configuration in force, copy of the SPD, routes
//!                                    └─────► worker: selectors of SAs; one policy between two batches
//! ```
//!
//! The main thread makes each change, one at a time, as it makes reloads: so no change falls into one. It
//! checks the change against what is in force ([`PolicyBook`](super::policy_book::PolicyBook)), has the
//! worker make it, and then makes it in its own copy of the SPD. None of that looks at all policies or all
//! tunnels. Policies have other names in the copy than in the worker's SPD, where policies of single flows
//! ([`populated`](super::populated)) are among them: a new policy comes right after the one before it, so
//! that it precedes those of the next one's flows.
//!
//! An SA delivers what its selectors allow (RFC 4301 5.2). They are widened before a policy is added, and
//! narrowed after one is removed: no packet meets the new policy under the old selectors.
//!
//! Such policies are not in the configuration file: a reload or a restart puts the file's in force, which the
//! log says.

use super::api::Shared;
use super::assemble;
use super::installed::InstalledTunnels;
use super::negotiated;
use super::sa_control::SaControl;
use crate::config::{self, ConfigErrors};
use crate::firewall::RouteChange;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use testudo_gateway::{Commander, CommanderError, Update};
use testudo_ipsec::{Direction, PolicyChange, PolicyId, SaSelectors, Selector, SpdError, TunnelIndex};

/// How long a client waits for the main thread, which may be storing windows.
const PATIENCE: Duration = Duration::from_secs(4);

/// Why a policy is refused.
pub(super) const NO_BYPASS: &str = "no policy said \"bypass\" when the gateway started: that needs a restart";

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
    ask_main(changer, request, "see with `policy list` whether the change was made")
}

/// Has the main thread do what only it can, and waits for the outcome. `late` is what a client is told to do
/// if there is none in time.
///
/// # Errors
/// Why it was not done, for a client.
pub(super) fn ask_main(changer: &Changer, request: &Value, late: &str) -> Result<Value, String> {
    let (reply, answer) = sync_channel(1);
    if !changer.0(ChangeRequest { request: request.clone(), reply }) {
        return Err("the gateway is busy: try again".to_owned());
    }
    answer.recv_timeout(PATIENCE).map_err(|_| format!("the gateway is busy: {late}"))?
}

/// A change that was checked.
#[derive(Debug)]
pub struct Planned {
    /// What changes of the configuration in force.
    edit: Edit,
    /// The change of the worker's SPD.
    pub change: PolicyChange,
    /// What is said about it.
    pub said: String,
    /// The same change of the control plane's copy, where policies have other names.
    copy: PolicyChange,
    /// The name of a new policy in the worker's SPD, once it is there.
    in_worker: Option<PolicyId>,
    /// The number of a policy that is there no more, or says something else.
    pub gone: Option<u32>,
    /// Selectors of tunnels while both may be in force, and after it.
    wide: TunnelSelectors,
    narrow: TunnelSelectors,
}

/// What becomes of the policies of the configuration.
#[derive(Debug)]
enum Edit {
    Insert(usize, config::Policy),
    Replace(usize, config::Policy),
    Remove(usize),
}

/// A change that was made.
pub(super) struct Made {
    /// What is said about it.
    pub(super) said: String,
    /// Tunnels of flows that end with it, one after another.
    pub(super) ends: usize,
    /// The routes that differ.
    pub(super) routes: Result<Vec<RouteChange>, SpdError>,
}

/// Makes a change that a client asks for. Tunnels of flows whose policy is gone, or says something else now,
/// end after it, as many at once as one part has ([`ending`](super::ending)): first the policy, so that no
/// flow begins meanwhile, then they.
///
/// # Errors
/// Why it was not made.
pub(super) fn make(
    shared: &Shared,
    commander: &Commander,
    request: &Value,
    may_bypass: bool,
) -> Result<Made, String> {
    let sas = shared.sas.get();
    // No tunnel begins for a flow meanwhile.
    let mut state = sas.map(SaControl::lock);
    let old = shared.installed();
    let mut planned = plan(&old, request)?;
    if planned.bypasses() && !may_bypass {
        return Err(NO_BYPASS.to_owned());
    }
    planned.carry_out(commander)?;
    let gone = planned.gone.and_then(|number| old.book.populating(number));
    let ends = gone.map_or(0, |policy| old.populated.end_all_of(policy));
    // While anything else has it, a change copies it.
    drop(old);
    let said = planned.said.clone();
    let routes = shared.change_installed(|installed| planned.apply(installed));
    if let (Some(sas), Some(state)) = (sas, &mut state) {
        sas.end_part(state, &shared.installed());
    }
    Ok(Made { said, ends, routes })
}

/// Checks a request against what is in force.
///
/// # Errors
/// What is wrong, in words.
pub fn plan(installed: &InstalledTunnels, request: &Value) -> Result<Planned, String> {
    let named = |key: &str| find(installed, request[key].as_str().unwrap_or_default());
    match request["verb"].as_str() {
        Some("policy-add") => {
            let place = place(installed, request)?;
            let policy = read(installed, request, place, None)?;
            let number = installed.book.index.next_number();
            Ok(add(installed, config::Policy { number, ..policy }, place))
        }
        Some("policy-replace") => {
            let place = named("policy")?;
            let policy = read(installed, request, place, Some(place))?;
            replace(installed, policy, place)
        }
        Some("policy-delete") => delete(installed, named("policy")?),
        _ => Err("unknown verb".to_owned()),
    }
}

/// The policy of a request, in words of the configuration.
fn read(
    installed: &InstalledTunnels,
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
    let InstalledTunnels { configuration, book, spd, .. } = installed;
    let slot = config::Slot {
        index: &book.index,
        is_earlier: &|number| book.is_in_front(number, place, spd),
        label_of: &|number| installed.policy(number).map(config::Policy::label).unwrap_or_default(),
        replaced: replaced.and_then(|place| Some(configuration.policies.get(place)?.number)),
    };
    configuration.read_policy(&text, slot).map_err(|errors| in_a_line(&errors))
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
fn find(installed: &InstalledTunnels, label: &str) -> Result<usize, String> {
    let numbered = || {
        let number = label.parse().ok()?;
        installed.policy(number).filter(|policy| policy.name.is_none()).map(|_| number)
    };
    let number = installed.book.index.named(label).or_else(numbered);
    let place = number.and_then(|number| installed.book.place_of(number, &installed.spd));
    place.ok_or_else(|| {
        if installed.negotiated.has_policy(label, installed.spd.len()) {
            return negotiated::not_ours(&format!("policy \"{label}\""), installed);
        }
        let labels = installed.configuration.policies.iter().map(config::Policy::label);
        let meant = config::did_you_mean(label, labels.collect::<Vec<_>>().iter().map(String::as_str));
        let help = meant.unwrap_or_else(|| "`testudo policy list` shows them".to_owned());
        format!("there is no policy \"{label}\" that could be changed; {help}")
    })
}

/// Where a new policy goes; without a word, after all others, and before the selectors of tunnels.
fn place(installed: &InstalledTunnels, request: &Value) -> Result<usize, String> {
    match (&request["before"], &request["after"]) {
        (Value::Null, Value::Null) => Ok(installed.configuration.policies.len()),
        (Value::String(label), Value::Null) => find(installed, label),
        (Value::Null, Value::String(label)) => Ok(find(installed, label)? + 1),
        _ => Err("either before or after another policy".to_owned()),
    }
}

fn add(installed: &InstalledTunnels, policy: config::Policy, place: usize) -> Planned {
    let entry = installed.entry(&policy);
    let change = PolicyChange::Insert(installed.book.workers_position(place), entry.clone());
    let copy = PolicyChange::Insert(installed.book.position(place), entry);
    let said = format!("policy {} is in force", policy.label());
    let (wide, narrow) = installed.selectors(None, Some(&policy));
    Planned {
        edit: Edit::Insert(place, policy),
        change,
        copy,
        in_worker: None,
        gone: None,
        said,
        wide,
        narrow,
    }
}

fn replace(installed: &InstalledTunnels, policy: config::Policy, place: usize) -> Result<Planned, String> {
    let (id, old) = (installed.book.id_at(place), installed.configuration.policies.get(place));
    let (Some(id), Some(old)) = (id, old) else { return Err("there is no such policy".to_owned()) };
    let name = policy.name.clone().or_else(|| old.name.clone());
    let policy = config::Policy { name, number: old.number, ..policy };
    let workers_id = installed.book.workers_id(old.number).ok_or("there is no such policy")?;
    let entry = installed.entry(&policy);
    let (change, copy) = (PolicyChange::Replace(workers_id, entry.clone()), PolicyChange::Replace(id, entry));
    let (said, gone) = (format!("policy {} is replaced", old.label()), Some(old.number));
    let (wide, narrow) = installed.selectors(Some(old), Some(&policy));
    Ok(Planned {
        edit: Edit::Replace(place, policy),
        change,
        copy,
        in_worker: None,
        gone,
        said,
        wide,
        narrow,
    })
}

fn delete(installed: &InstalledTunnels, place: usize) -> Result<Planned, String> {
    let (id, old) = (installed.book.id_at(place), installed.configuration.policies.get(place));
    let (Some(id), Some(old)) = (id, old) else { return Err("there is no such policy".to_owned()) };
    let workers_id = installed.book.workers_id(old.number).ok_or("there is no such policy")?;
    let (change, copy) = (PolicyChange::Remove(workers_id), PolicyChange::Remove(id));
    let (said, gone) = (format!("policy {} is deleted", old.label()), Some(old.number));
    let (wide, narrow) = installed.selectors(Some(old), None);
    Ok(Planned { edit: Edit::Remove(place), change, copy, in_worker: None, gone, said, wide, narrow })
}

type TunnelSelectors = Vec<(TunnelIndex, SaSelectors)>;

impl InstalledTunnels {
    /// The policy with a number.
    pub(super) fn policy(&self, number: u32) -> Option<&config::Policy> {
        self.configuration.policies.get(self.book.place_of(number, &self.spd)?)
    }

    /// A policy as the SPD has it.
    pub(super) fn entry(&self, policy: &config::Policy) -> testudo_ipsec::Policy {
        let index = policy.tunnel().and_then(|tunnel| self.tunnels.get(tunnel)).map(|running| running.index);
        assemble::policy_for(policy, index)
    }

    /// The selectors of the tunnels that a change concerns: all while it is made, and those that are left.
    ///
    /// Where a tunnel has more than eight, both get an index of all of them, which takes this thread a while
    /// that packets do not wait for: with 10,000 networks 15 ms each, with 10,000 ranges of ports 70 ms. It
    /// grows with the selectors of that tunnel alone.
    fn selectors(
        &self,
        old: Option<&config::Policy>,
        new: Option<&config::Policy>,
    ) -> (TunnelSelectors, TunnelSelectors) {
        let (mut wide, mut narrow) = (Vec::new(), Vec::new());
        let tunnels: BTreeSet<usize> =
            old.into_iter().chain(new).filter_map(config::Policy::tunnel).collect();
        for tunnel in tunnels {
            let Some(running) = self.tunnels.get(tunnel) else { continue };
            let of = |policy: Option<&config::Policy>| -> Vec<Selector> {
                // One that populates has it as a template: its flows' tunnels have selectors of their own.
                let policy = policy.filter(|p| p.tunnel() == Some(tunnel) && p.populate.is_empty());
                let policy = policy.filter(|p| p.directions.include(Direction::Inbound));
                policy.into_iter().flat_map(|p| p.selectors.iter().copied()).collect()
            };
            let others = self.book.index.of_tunnel(tunnel);
            let others = others.filter(|number| old.is_none_or(|old| old.number != *number));
            let others = others.filter_map(|number| self.policy(number)).map(|policy| &policy.selectors);
            let own = self.configuration.tunnels.get(tunnel).into_iter().flat_map(|t| &t.selectors);
            let (before, mut after) = (of(old), of(new));
            if before.is_empty() && after.is_empty() {
                continue;
            }
            after.extend(others.chain(own).flat_map(|selectors| selectors.iter().copied()));
            let made = |selectors| assemble::sa_selectors(&running.tunnel, selectors);
            let narrowed = made(after.clone());
            let both = match before.is_empty() {
                true => narrowed.clone(),
                false => made(before.into_iter().chain(after).collect()),
            };
            wide.push((running.index, both));
            narrow.push((running.index, narrowed));
        }
        (wide, narrow)
    }
}

impl Planned {
    /// Whether it puts a policy in force that says "bypass".
    #[must_use]
    pub fn bypasses(&self) -> bool {
        let (Edit::Insert(_, policy) | Edit::Replace(_, policy)) = &self.edit else { return false };
        policy.action == config::Action::Bypass
    }

    /// Has the worker make it.
    ///
    /// # Errors
    /// The worker does not take it; then nothing has changed but that SAs may deliver more than before, which
    /// the SPD still refuses.
    pub fn carry_out(&mut self, commander: &Commander) -> Result<(), String> {
        let told = |error: CommanderError| error.to_string();
        let select = |selectors: TunnelSelectors| {
            commander.update(Update { selectors, ..Update::default() }).map(drop).map_err(told)
        };
        let change = |change| commander.change_policies(vec![change]).map_err(told);
        self.carry_out_by(select, change)
    }

    fn carry_out_by(
        &mut self,
        select: impl Fn(TunnelSelectors) -> Result<(), String>,
        change: impl FnOnce(PolicyChange) -> Result<Vec<Result<PolicyId, SpdError>>, String>,
    ) -> Result<(), String> {
        if !self.wide.is_empty() {
            select(self.wide.clone())?;
        }
        match change(self.change.clone())?.into_iter().next() {
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(id)) => self.in_worker = Some(id),
            None => return Err("the worker gave no answer".to_owned()),
        }
        // The policy is in force, so that it is made in the copy, too: the SPD refuses what SAs deliver
        // beyond it, as while both were in force.
        if !self.narrow.is_empty()
            && let Err(error) = select(self.narrow.clone())
        {
            tracing::error!("{}, but SAs still deliver what they did before: {error}", self.said);
        }
        Ok(())
    }

    /// Makes it in what is in force for the control plane. Returns the routes that differ then.
    ///
    /// # Errors
    /// The copy of the SPD does not take what the worker's has taken, which is a bug.
    pub fn apply(self, installed: &mut InstalledTunnels) -> Result<Vec<RouteChange>, SpdError> {
        let id = Arc::make_mut(&mut installed.spd).change(self.copy)?;
        let in_worker = self.in_worker.unwrap_or(id);
        let InstalledTunnels { configuration, book, populated, .. } = installed;
        let named = |policy: &config::Policy| (!policy.populate.is_empty()).then(|| populated.name_policy());
        Ok(match self.edit {
            Edit::Insert(place, policy) => {
                book.set_populating(policy.number, named(&policy));
                let routes = book.insert(place, id, in_worker, &policy);
                configuration.policies.insert(place, policy);
                routes
            }
            Edit::Replace(place, policy) => {
                book.set_populating(policy.number, named(&policy));
                let routes = book.replace(&configuration.policies[place], &policy);
                configuration.policies[place] = policy;
                routes
            }
            Edit::Remove(place) => {
                let removed = configuration.policies.remove(place);
                book.set_populating(removed.number, None);
                book.remove(place, &removed)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use crate::config::{Configuration, Loaded, TunnelKeys};
    use crate::service::installed::Numbers;
    use testudo_crypto::{KeyMaterial, Suite};
    use testudo_ipsec::{Action, Position, Verdict};
    use zeroize::Zeroizing;

    const POLICIES: &str = "[[policy]]\nname = \"mail\"\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n\
                            [[policy]]\naction = \"discard\"\nremote = \"10.3.0.0/16\"\n";

    fn key(byte: u8) -> KeyMaterial {
        let suite = Suite::AES128GCM16;
        KeyMaterial::new(suite, Zeroizing::new(vec![byte; suite.keying_material_bytes()])).unwrap()
    }

    /// What is in force under [`POLICIES`].
    fn installed() -> InstalledTunnels {
        let configuration = Configuration::parse(&format!("{POLICIES}{MINIMAL}"), "t.toml").unwrap();
        let keys = vec![TunnelKeys::pair(key(1), key(2))];
        let loaded = Loaded { configuration, keys };
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        empty.plan(&loaded, &Numbers::KnownAnswers).unwrap().1
    }

    fn changed(mut installed: InstalledTunnels, request: &Value) -> InstalledTunnels {
        plan(&installed, request).unwrap().apply(&mut installed).unwrap();
        installed
    }

    fn labels(installed: &InstalledTunnels) -> Vec<String> {
        installed.configuration.policies.iter().map(config::Policy::label).collect()
    }

    /// The policies after some requests, each of which succeeds.
    fn after(requests: &[Value]) -> InstalledTunnels {
        requests.iter().fold(installed(), changed)
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

    /// The policies of flows come right before the one that they are populated for: what is put before that
    /// one comes before them, too.
    #[test]
    fn a_new_policy_precedes_those_of_the_next_ones_flows() {
        let installed = installed();
        let id = |number| installed.book.workers_id(number).unwrap();
        for (place, expected) in [
            (json!({ "before": "mail" }), Position::First),
            (json!({ "after": "mail" }), Position::After(id(1))),
            (json!({ "before": "2" }), Position::After(id(1))),
            (json!({}), Position::After(id(2))),
        ] {
            let planned = plan(&installed, &added(&place)).unwrap();
            assert!(matches!(planned.change, PolicyChange::Insert(at, _) if at == expected), "{place}");
        }
    }

    #[test]
    fn numbers_are_given_once_and_stay() {
        let delete = |label: &str| json!({ "verb": "policy-delete", "policy": label });
        let installed = after(&[added(&json!({ "before": "mail" })), delete("2")]);
        assert_eq!(labels(&installed), ["3", "mail"]);
        // Not even the highest one, when its policy is gone.
        let again = changed(changed(installed.clone(), &delete("3")), &added(&json!({})));
        assert_eq!(labels(&again), ["mail", "4"]);
        assert!(plan(&installed, &delete("2")).unwrap_err().contains("there is no policy \"2\""));
        let replace = json!({ "verb": "policy-replace", "policy": "mail", "words": { "action": "discard", "protocol": "gre" } });
        let replaced = changed(installed, &replace);
        assert_eq!(labels(&replaced), ["3", "mail"]);
        assert_eq!(
            replaced.spd.policies().nth(1).unwrap().1.selectors[0].to_string(),
            "any <-> any protocol 47"
        );
    }

    /// As many as a file may have: each is an entry of the worker's tables.
    #[test]
    fn selectors_are_bounded_at_run_time_as_in_the_file() {
        let all = |network: &str, count: usize, from: usize| -> String {
            let network = |n: usize| format!("{network}.{}.{}.0/24", n / 256, n % 256);
            (from..from + count).map(network).collect::<Vec<_>>().join(",")
        };
        let request = |number: usize| {
            let (local, remote) = (all("172", 16, 16 * 256), all("11", 16, 16 * number));
            json!({ "verb": "policy-add", "words": { "action": "discard", "local": local, "remote": remote } })
        };
        let mut now = installed();
        let most = (config::MAX_RULES - now.book.index.rules()) / 256;
        for number in 0..most {
            plan(&now, &request(number)).unwrap().apply(&mut now).unwrap();
        }
        let refused = plan(&now, &request(most)).unwrap_err();
        assert!(refused.contains("at most 100000 selectors in all"), "{refused}");
        let replace = json!({ "verb": "policy-replace", "policy": "3", "words": request(most)["words"] });
        plan(&now, &replace).unwrap();
        assert_eq!(now.book.index.rules(), 3 + most * 256);
    }

    #[test]
    fn what_a_tunnel_delivers_follows_the_policies_that_name_it() {
        let words = json!({ "action": "protect", "tunnel": "site-b", "remote": "10.9.0.0/16" });
        let request = json!({ "verb": "policy-add", "words": words });
        let in_words = |selectors: &TunnelSelectors| -> Vec<Vec<String>> {
            let of = |s: &SaSelectors| s.list().iter().map(ToString::to_string).collect();
            selectors.iter().map(|(_, selectors)| of(selectors)).collect()
        };
        let own = "10.1.0.0/16 <-> 10.2.0.0/16";
        let planned = plan(&installed(), &request).unwrap();
        assert_eq!(in_words(&planned.wide), [["any <-> 10.9.0.0/16", own]]);
        assert_eq!(in_words(&planned.narrow), [["any <-> 10.9.0.0/16", own]]);
        let with = after(&[request]);
        let words = json!({ "action": "protect", "tunnel": "site-b", "remote": "10.8.0.0/16" });
        let replaced =
            plan(&with, &json!({ "verb": "policy-replace", "policy": "3", "words": words })).unwrap();
        assert_eq!(in_words(&replaced.wide), [["any <-> 10.9.0.0/16", "any <-> 10.8.0.0/16", own]]);
        assert_eq!(in_words(&replaced.narrow), [["any <-> 10.8.0.0/16", own]]);
        let deleted = plan(&with, &json!({ "verb": "policy-delete", "policy": "3" })).unwrap();
        assert_eq!(in_words(&deleted.wide), [["any <-> 10.9.0.0/16", own]]);
        assert_eq!(in_words(&deleted.narrow), [[own]]);
        // As the configuration has it.
        assert_eq!(*deleted.narrow[0].1.list(), *assemble::tunnel_selectors(&installed().configuration, 0));
    }

    /// A worker that is busy has made the change all the same: the copy of the SPD has it, too. One that is
    /// busy before has not.
    #[test]
    fn a_policy_that_the_worker_has_is_made_though_selectors_are_not_narrowed() {
        let words = json!({ "action": "protect", "tunnel": "site-b", "remote": "10.9.0.0/16" });
        let request = json!({ "verb": "policy-add", "words": words });
        let carried_out = |busy_from: usize| {
            let (mut planned, calls) = (plan(&installed(), &request).unwrap(), std::cell::Cell::new(0));
            let call = || {
                calls.set(calls.get() + 1);
                if calls.get() > busy_from { Err(CommanderError::Busy.to_string()) } else { Ok(()) }
            };
            let id = installed().book.workers_id(1).unwrap();
            let outcome = planned.carry_out_by(|_| call(), |_| call().map(|()| vec![Ok(id)]));
            (calls.get(), outcome.is_ok(), planned.in_worker == Some(id))
        };
        assert_eq!([3, 2].map(carried_out), [(3, true, true); 2]);
        assert_eq!([1, 0].map(carried_out), [(2, false, false), (1, false, false)]);
    }

    /// RFC 4301 4.4.1: the order decides. After each change the copy is what the configuration says.
    #[test]
    fn many_changes_leave_what_the_configuration_says() {
        let (mut random, mut now) = (fastrand::Rng::with_seed(5), installed());
        for step in 0..400_u32 {
            let labels = labels(&now);
            let label = labels.get(random.usize(..labels.len().max(1))).cloned();
            let words = json!({ "action": "discard", "remote": format!("10.{}.{}.0/24", random.u8(3..6), step % 256) });
            let request = match (random.u8(..4), label) {
                (0, Some(label)) => json!({ "verb": "policy-delete", "policy": label }),
                (1, Some(label)) => json!({ "verb": "policy-replace", "policy": label, "words": words }),
                (2, Some(label)) => json!({ "verb": "policy-add", "words": words, "before": label }),
                _ => json!({ "verb": "policy-add", "words": words }),
            };
            // Some are covered by others, or are there already.
            if let Ok(planned) = plan(&now, &request) {
                planned.apply(&mut now).unwrap();
            }
            let found = now.spd.policies().map(|(_, policy)| policy.clone());
            let expected = assemble::policies(&now.configuration, &[TunnelIndex(0)]);
            assert!(found.eq(expected.policies().map(|(_, policy)| policy.clone())), "seed 5, step {step}");
            let places = now.configuration.policies.iter().map(|p| now.book.place_of(p.number, &now.spd));
            assert!(places.eq((0..now.configuration.policies.len()).map(Some)), "seed 5, step {step}");
        }
        assert!(now.configuration.policies.len() > 20);
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
                words(json!({
                    "action": "protect", "tunnel": "site-b", "remote": "11.0.0.1-11.255.255.254",
                    "local": "12.0.0.1-12.255.255.254", "protocol": "udp", "populate_from_packet": "remote_ports",
                })),
                "expected SAs for flows whose selectors make at most 256 pairs of prefixes each, found 2116",
            ),
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
