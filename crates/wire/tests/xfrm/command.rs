//! What a command line of `ip xfrm` says, as a message: a slow and obvious reading of ip-xfrm(8), to compare
//! with what `ip` sent.

use std::net::IpAddr;
use testudo_wire::xfrm::address::{Address, family_of};
use testudo_wire::xfrm::algorithm::{Algorithm, AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::info::{InfoFlags, SpdInfo, Threshold};
use testudo_wire::xfrm::lifetime::LifetimeConfig;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{PolicyDefaults, PolicyId, PolicyInfo, PolicyType, Template};
use testudo_wire::xfrm::replay::{EsnFixed, ReplayState, ReplayStateEsn};
use testudo_wire::xfrm::sa::{Encapsulation, FlushSas, Offload, SaInfo, SpiRequest};
use testudo_wire::xfrm::security::SecurityContext;
use testudo_wire::xfrm::selector::{Id, Mark, SaId, Selector};

/// The words of a command line, from the left.
struct Words(Vec<&'static str>);

impl Words {
    fn next(&mut self) -> Option<&'static str> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    fn peek(&self) -> &'static str {
        self.0.first().copied().unwrap_or_default()
    }

    fn word(&mut self) -> &'static str {
        self.next().expect("another word")
    }

    fn number(&mut self) -> u64 {
        let word = self.word();
        let hex = word.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
        hex.unwrap_or_else(|| word.parse()).unwrap_or_else(|_| panic!("{word} is no number"))
    }

    fn u32(&mut self) -> u32 {
        self.number().try_into().expect("32 bits")
    }

    fn u8(&mut self) -> u8 {
        self.number().try_into().expect("8 bits")
    }

    /// Address, prefix length, family.
    fn network(&mut self) -> (Address, u8, u16) {
        let word = self.word();
        let (ip, prefix) = word.split_once('/').unwrap_or((word, ""));
        let ip: IpAddr = ip.parse().expect("an address");
        let all = if ip.is_ipv4() { 32 } else { 128 };
        (ip.into(), prefix.parse().unwrap_or(all), family_of(ip))
    }

    fn key(&mut self) -> Key {
        Key::new(crate::captures::unhex(self.word().strip_prefix("0x").unwrap_or_default()).into())
    }

    fn mark(&mut self) -> Mark {
        let value = self.u32();
        Mark {
            value,
            mask: if self.peek() == "mask" { self.next().map_or(0, |_| self.u32()) } else { u32::MAX },
        }
    }
}

/// `ip` is quoted here as a shell would quote it, which the recording has lost: only names have spaces
/// around.
fn words(command: &'static str) -> Words {
    Words(command.split_whitespace().filter(|word| !matches!(*word, "ip" | "xfrm" | "-s" | "-6")).collect())
}

fn protocol(name: &str) -> u8 {
    match name {
        "esp" => 50,
        "ah" => 51,
        "comp" => 108,
        "hao" => 60,
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "gre" => 47,
        other => panic!("{other}"),
    }
}

fn mode(name: &str) -> u8 {
    ["transport", "tunnel", "ro", "in_trigger", "beet"]
        .iter()
        .position(|known| *known == name)
        .expect("a mode") as u8
}

fn flag(name: &str, names: &[&str]) -> u32 {
    1 << names.iter().position(|known| *known == name).expect("a flag")
}

fn limit(words: &mut Words, lifetime: &mut LifetimeConfig) {
    let (name, value) = (words.word(), words.number());
    *match name {
        "time-soft" => &mut lifetime.soft_added_s,
        "time-hard" => &mut lifetime.hard_added_s,
        "time-use-soft" => &mut lifetime.soft_used_s,
        "time-use-hard" => &mut lifetime.hard_used_s,
        "byte-soft" => &mut lifetime.soft_bytes,
        "byte-hard" => &mut lifetime.hard_bytes,
        "packet-soft" => &mut lifetime.soft_packets,
        "packet-hard" => &mut lifetime.hard_packets,
        other => panic!("{other}"),
    } = value;
}

/// One word of a selector, with what follows it; `lo` has index 1.
fn select(word: &str, words: &mut Words, selector: &mut Selector) -> bool {
    match word {
        "src" => (selector.source, selector.source_prefix, selector.family) = words.network(),
        "dst" => (selector.destination, selector.destination_prefix, selector.family) = words.network(),
        "proto" => selector.protocol = protocol(words.word()),
        "sport" | "type" => {
            (selector.source_port, selector.source_port_mask) = (words.u32() as u16, u16::MAX)
        }
        "dport" | "code" => {
            (selector.destination_port, selector.destination_port_mask) = (words.u32() as u16, u16::MAX);
        }
        "key" => {
            let key: std::net::Ipv4Addr = words.word().parse().expect("a key like an address");
            let [a, b, c, d] = key.octets();
            (selector.source_port, selector.source_port_mask) = (u16::from_be_bytes([a, b]), u16::MAX);
            (selector.destination_port, selector.destination_port_mask) =
                (u16::from_be_bytes([c, d]), u16::MAX);
        }
        "dev" => {
            assert_eq!(words.word(), "lo");
            selector.interface = 1;
        }
        _ => return false,
    }
    true
}

fn security_context(words: &mut Words) -> Attribute {
    let text = [words.word().as_bytes(), &[0]].concat();
    Attribute::SecurityContext(SecurityContext { extension: 8, algorithm: 1, domain: 1, text })
}

fn algorithm(word: &str, words: &mut Words) -> Option<Attribute> {
    if !["auth", "enc", "comp", "auth-trunc", "aead"].contains(&word) {
        return None;
    }
    let name = words.word().to_owned();
    // An empty key is quoted in a shell, and not there in the recording.
    let key = if word == "comp" || name == "digest_null" || name.contains("null") {
        Key::default()
    } else {
        words.key()
    };
    Some(match word {
        "auth" => Attribute::Integrity(Algorithm { name, key }),
        "enc" => Attribute::Cipher(Algorithm { name, key }),
        "comp" => Attribute::Compression(Algorithm { name, key }),
        "aead" => Attribute::Aead(AlgorithmWithIcv { name, key, icv_bits: words.u32() }),
        _ => Attribute::IntegrityTruncated(AlgorithmWithIcv { name, key, icv_bits: words.u32() }),
    })
}

const SA_FLAGS: [&str; 8] =
    ["noecn", "decap-dscp", "nopmtudisc", "wildrecv", "icmp", "af-unspec", "align4", "esn"];

/// What `state add` and its like say.
#[derive(Default)]
struct State {
    sa: SaInfo,
    attributes: Vec<Attribute>,
    replay: EsnFixed,
    range: (u32, u32),
    mark: Option<Mark>,
    extra_flags: u32,
}

impl State {
    fn read(words: &mut Words) -> Self {
        let mut state = Self::default();
        state.sa.lifetime = LifetimeConfig::UNLIMITED;
        while let Some(word) = words.next() {
            if !state.identity(word, words) {
                state.rest(word, words);
            }
        }
        if state.extra_flags != 0 {
            state.attributes.push(Attribute::ExtraFlags(state.extra_flags));
        }
        state.attributes.extend(state.mark.map(Attribute::Mark));
        state
    }

    fn identity(&mut self, word: &str, words: &mut Words) -> bool {
        let sa = &mut self.sa;
        match word {
            "src" => (sa.source, _, sa.family) = words.network(),
            "dst" => (sa.id.destination, _, sa.family) = words.network(),
            "proto" => sa.id.protocol = protocol(words.word()),
            "spi" => sa.id.spi = words.u32(),
            "mode" => sa.mode = mode(words.word()),
            "reqid" => sa.reqid = words.u32(),
            // `ip` sends it in network order, and shows what it gets likewise; the kernel does not care.
            "seq" => sa.sequence = words.u32().to_be(),
            "flag" => sa.flags |= flag(words.word(), &SA_FLAGS) as u8,
            "limit" => limit(words, &mut sa.lifetime),
            "sel" => {
                while select(words.peek(), &mut Words(words.0[1..].to_vec()), &mut Selector::default()) {
                    let word = words.word();
                    select(word, words, &mut sa.selector);
                }
            }
            _ => return false,
        }
        true
    }

    fn rest(&mut self, word: &str, words: &mut Words) {
        let attribute = match word {
            "replay-window" => return self.replay.window = words.u32(),
            "replay-seq" => return self.replay.received = words.u32(),
            "replay-oseq" => return self.replay.sent = words.u32(),
            "replay-seq-hi" => return self.replay.received_high = words.u32(),
            "replay-oseq-hi" => return self.replay.sent_high = words.u32(),
            "min" => return self.range.0 = words.u32(),
            "max" => return self.range.1 = words.u32(),
            "mark" => return self.mark = Some(words.mark()),
            "extra-flag" => {
                return self.extra_flags |= flag(words.word(), &["dont-encap-dscp", "oseq-may-wrap"]);
            }
            "output-mark" => {
                let mark = words.mark();
                self.attributes.push(Attribute::SetMark(mark.value));
                Attribute::SetMarkMask(mark.mask)
            }
            "if_id" => Attribute::IfId(words.u32()),
            "tfcpad" => Attribute::TfcPadding(words.u32()),
            "ctx" => security_context(words),
            "coa" => Attribute::CareOf(words.network().0),
            "encap" => {
                assert_eq!(words.word(), "espinudp");
                let (source_port, destination_port) = (words.u32() as u16, words.u32() as u16);
                let original_address = words.network().0;
                Attribute::Encapsulation(Encapsulation {
                    kind: 2,
                    source_port,
                    destination_port,
                    original_address,
                })
            }
            "offload" => {
                assert_eq!(
                    [words.word(), words.word(), words.word(), words.word()],
                    ["dev", "lo", "dir", "in"]
                );
                Attribute::Offload(Offload { interface: 1, flags: 2 })
            }
            other => algorithm(other, words).unwrap_or_else(|| panic!("{other}")),
        };
        self.attributes.push(attribute);
    }

    /// Numbers and window, in the form that the window and ESN call for.
    fn with_replay(mut self) -> Self {
        let replay = self.replay;
        if self.sa.flags & 128 != 0 || replay.window > 32 {
            let words = replay.window.div_ceil(32);
            // The size of a bitmap, without one: the kernel takes it for zeros.
            let fixed = EsnFixed { words, ..replay };
            self.attributes.push(Attribute::ReplayEsn(ReplayStateEsn { fixed, bitmap: Vec::new() }));
        } else {
            self.sa.replay_window = replay.window as u8;
            if (replay.sent, replay.received) != (0, 0) {
                let (sent, received) = (replay.sent, replay.received);
                self.attributes.push(Attribute::Replay(ReplayState { sent, received, bitmap: 0 }));
            }
        }
        self
    }

    fn message(self, body: impl FnOnce(SaInfo) -> Body) -> Message {
        Message { body: body(self.sa), attributes: self.attributes.into_iter().collect() }
    }

    /// Delete and get name the source as well.
    fn by_id(mut self, body: impl FnOnce(SaId) -> Body) -> Message {
        if self.sa.source != Address::ANY {
            self.attributes.push(Attribute::Source(self.sa.source));
        }
        let id = self.sa.sa_id();
        Message { body: body(id), attributes: self.attributes.into_iter().collect() }
    }
}

fn state(words: &mut Words) -> Option<Message> {
    Some(match words.word() {
        "add" => State::read(words).with_replay().message(Body::NewSa),
        "update" => State::read(words).with_replay().message(Body::UpdateSa),
        "allocspi" => {
            let mut state = State::read(words);
            state.sa.lifetime = LifetimeConfig::default();
            let (lowest, highest) = state.range;
            state.message(|sa| Body::AllocateSpi(SpiRequest { sa, lowest, highest }))
        }
        "delete" => State::read(words).by_id(Body::DeleteSa),
        "get" => State::read(words).by_id(Body::GetSa),
        "count" => Body::GetSadInfo(InfoFlags { flags: u32::MAX }).into(),
        "flush" => {
            let protocol = words.next().map_or(0, |_| protocol(words.word()));
            Body::FlushSas(FlushSas { protocol }).into()
        }
        _ => return None,
    })
}

fn policy_type(words: &mut Words) -> Attribute {
    let kind = ["main", "sub"].iter().position(|name| *name == words.peek()).expect("a table") as u8;
    words.word();
    Attribute::PolicyType(PolicyType { kind })
}

/// One template, up to the next or the end.
fn template(words: &mut Words, family: u16) -> Template {
    let any = u32::MAX;
    let id = Id { protocol: 50, ..Id::default() };
    let mut template = Template {
        id,
        family,
        integrity_algorithms: any,
        ciphers: any,
        compression_algorithms: any,
        ..Template::default()
    };
    while !words.0.is_empty() && words.peek() != "tmpl" {
        match words.word() {
            "src" => (template.source, _, template.family) = words.network(),
            "dst" => (template.id.destination, _, template.family) = words.network(),
            "proto" => template.id.protocol = protocol(words.word()),
            "spi" => template.id.spi = words.u32(),
            "reqid" => template.reqid = words.u32(),
            "mode" => template.mode = mode(words.word()),
            "level" => template.optional = u8::from(words.word() == "use"),
            other => panic!("{other}"),
        }
    }
    template
}

/// A policy, its templates and other attributes, from the words of `policy add` and its like.
fn policy_words(words: &mut Words) -> (PolicyInfo, Vec<Attribute>) {
    let mut policy = PolicyInfo { lifetime: LifetimeConfig::UNLIMITED, ..PolicyInfo::default() };
    let (mut attributes, mut templates) = (Vec::new(), Vec::new());
    while let Some(word) = words.next() {
        if select(word, words, &mut policy.selector) {
            continue;
        }
        match word {
            "dir" => {
                policy.direction =
                    ["in", "out", "fwd"].iter().position(|d| *d == words.peek()).expect("dir") as u8
            }
            "action" => policy.action = u8::from(words.word() == "block"),
            "priority" => policy.priority = words.u32(),
            "index" => policy.index = words.u32(),
            "flag" => policy.flags |= flag(words.word(), &["localok", "icmp"]) as u8,
            "limit" => limit(words, &mut policy.lifetime),
            "ptype" => attributes.push(policy_type(words)),
            "mark" => attributes.push(Attribute::Mark(words.mark())),
            "if_id" => attributes.push(Attribute::IfId(words.u32())),
            "ctx" => attributes.push(security_context(words)),
            "tmpl" => templates.push(template(words, policy.selector.family)),
            other => panic!("{other}"),
        }
        if word == "dir" {
            words.word();
        }
    }
    // Without an address it is the family of the command line's options, IPv4.
    if policy.selector.family == 0 {
        policy.selector.family = 2;
    }
    if !templates.is_empty() {
        attributes.push(Attribute::Templates(templates));
    }
    (policy, attributes)
}

fn by_policy_id(words: &mut Words, body: impl FnOnce(PolicyId) -> Body) -> Message {
    let (PolicyInfo { selector, index, direction, .. }, attributes) = policy_words(words);
    Message {
        body: body(PolicyId { selector, index, direction }),
        attributes: attributes.into_iter().collect(),
    }
}

fn defaults(words: &mut Words) -> PolicyDefaults {
    let mut defaults = PolicyDefaults::default();
    while let Some(word) = words.next() {
        let value = if words.word() == "block" { 1 } else { 2 };
        *match word {
            "in" => &mut defaults.inbound,
            "fwd" => &mut defaults.forward,
            _ => &mut defaults.outbound,
        } = value;
    }
    defaults
}

fn thresholds(words: &mut Words) -> SpdInfo {
    let mut info = SpdInfo { flags: u32::MAX, ..SpdInfo::default() };
    while let Some(word) = words.next() {
        let threshold = Some(Threshold { local_prefix: words.u8(), remote_prefix: words.u8() });
        match word {
            "hthresh4" => info.threshold_ipv4 = threshold,
            _ => info.threshold_ipv6 = threshold,
        }
    }
    info
}

fn policy(words: &mut Words) -> Option<Message> {
    let all = |(policy, attributes): (PolicyInfo, Vec<Attribute>), body: fn(PolicyInfo) -> Body| Message {
        body: body(policy),
        attributes: attributes.into_iter().collect::<Attributes>(),
    };
    Some(match words.word() {
        "add" => all(policy_words(words), Body::NewPolicy),
        "update" => all(policy_words(words), Body::UpdatePolicy),
        "delete" => by_policy_id(words, Body::DeletePolicy),
        "get" => by_policy_id(words, Body::GetPolicy),
        "count" => Body::GetSpdInfo(InfoFlags { flags: u32::MAX }).into(),
        "set" => Body::SpdInfo(thresholds(words)).into(),
        "setdefault" => Body::SetDefaults(defaults(words)).into(),
        "getdefault" => Body::GetDefaults(PolicyDefaults::default()).into(),
        "flush" => {
            let attributes = words.next().map(|_| policy_type(words));
            Message { body: Body::FlushPolicies, attributes: attributes.into_iter().collect() }
        }
        _ => return None,
    })
}

/// The message that `command` is about; none for lists, whose content no word says.
pub fn expected(command: &'static str) -> Option<Message> {
    let mut words = words(command);
    match words.word() {
        "state" => state(&mut words),
        "policy" => policy(&mut words),
        _ => None,
    }
}
