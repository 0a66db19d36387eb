//! `testudo policy …`: the policies of a running gateway, and changes of them.

use super::QueryArgs;
use clap::{Args, Subcommand};

/// `testudo policy …`
#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// List all policies in order of evaluation
    List(QueryArgs),
    /// Add a policy to the running gateway, until its next reload or restart
    #[command(after_help = NOTES)]
    Add(PolicyAddArgs),
    /// Put another policy in the place of one, until the next reload or restart
    #[command(after_help = NOTES)]
    Replace(PolicyReplaceArgs),
    /// Delete a policy, until the next reload or restart
    Delete(PolicyDeleteArgs),
}

const NOTES: &str = "The words are those of [[policy]] in the configuration, and mean the same. What is to stay belongs into the \
configuration as well: a reload or a restart puts its policies in force, and no others. Selectors of a [[tunnel]] come after all \
policies and are changed in the configuration. Where this host has the rules of `testudo firewall` for the gateway, they are loaded again \
for the policies then in force, which needs root; where that fails, the policy is in force all the same, and the exit code says so.";

/// A policy, in the words of `[[policy]]`.
#[derive(Debug, Args)]
pub struct PolicyWords {
    /// What happens to the packets: protect, bypass or discard
    #[arg(long)]
    pub action: String,
    /// A name for it; without one, it gets a number
    #[arg(long)]
    pub name: Option<String>,
    /// The tunnel that protects the packets
    #[arg(long)]
    pub tunnel: Option<String>,
    /// out for packets that leave, in for packets that arrive, both [default: both]
    #[arg(long)]
    pub direction: Option<String>,
    /// Addresses on the protected side: addresses, prefixes, ranges, with commas between them [default: any]
    #[arg(long, value_name = "ADDRESSES")]
    pub local: Vec<String>,
    /// Addresses behind the peer [default: any]
    #[arg(long, value_name = "ADDRESSES")]
    pub remote: Vec<String>,
    /// Protocols, by name or number [default: any]
    #[arg(long, value_name = "PROTOCOLS")]
    pub protocol: Vec<String>,
    /// Ports on the protected side, such as "443,1000-2000" [default: any]
    #[arg(long, value_name = "PORTS")]
    pub local_ports: Vec<String>,
    /// Ports behind the peer [default: any]
    #[arg(long, value_name = "PORTS")]
    pub remote_ports: Vec<String>,
    /// Types of messages of icmp, icmpv6 or mobility, such as "echo-request,3/4" [default: any]
    #[arg(long, value_name = "TYPES")]
    pub types: Vec<String>,
    /// The types that are sent, where they are not those that are received
    #[arg(long, value_name = "TYPES")]
    pub types_sent: Vec<String>,
    /// The types that are received
    #[arg(long, value_name = "TYPES")]
    pub types_received: Vec<String>,
    /// Give each flow SAs of its own, which take these fields from its packets: of local, remote, protocol,
    /// local_ports, remote_ports and types. The tunnel is their template
    #[arg(long, value_name = "FIELDS")]
    pub populate_from_packet: Vec<String>,
}

impl PolicyWords {
    /// The words that were given, under the keys of the configuration.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, String)> {
        let lists = [
            ("local", &self.local),
            ("remote", &self.remote),
            ("protocol", &self.protocol),
            ("local_ports", &self.local_ports),
            ("remote_ports", &self.remote_ports),
            ("types", &self.types),
            ("types_sent", &self.types_sent),
            ("types_received", &self.types_received),
            ("populate_from_packet", &self.populate_from_packet),
        ];
        let lists = lists.into_iter().filter(|(_, words)| !words.is_empty());
        let lists = lists.map(|(key, words)| (key, words.join(",")));
        let action = [("action", Some(&self.action)), ("name", self.name.as_ref())];
        let more = [("tunnel", self.tunnel.as_ref()), ("direction", self.direction.as_ref())];
        let single = action.into_iter().chain(more).filter_map(|(key, word)| Some((key, word?.clone())));
        single.chain(lists)
    }
}

/// `testudo policy add`
#[derive(Debug, Args)]
pub struct PolicyAddArgs {
    /// The policy.
    #[command(flatten)]
    pub words: PolicyWords,
    /// Put it right before this policy, by its name or number [default: after all policies]
    #[arg(long, value_name = "POLICY")]
    pub before: Option<String>,
    /// Put it right after this policy
    #[arg(long, value_name = "POLICY", conflicts_with = "before")]
    pub after: Option<String>,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// `testudo policy replace`
#[derive(Debug, Args)]
pub struct PolicyReplaceArgs {
    /// The policy that goes, by its name or number
    pub policy: String,
    /// The policy that comes in its place; it keeps the name unless it has another.
    #[command(flatten)]
    pub words: PolicyWords,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// `testudo policy delete`
#[derive(Debug, Args)]
pub struct PolicyDeleteArgs {
    /// The policy, by its name or number
    pub policy: String,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}
