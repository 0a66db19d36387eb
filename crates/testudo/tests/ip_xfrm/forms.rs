//! The forms of `ip xfrm` (ip-xfrm(8)), each as a script, and how the gateway's answers differ from the
//! kernel's.

/// How the gateway answers a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Word for word as the kernel.
    Same,
    /// It takes it, and shows something else.
    Differs(&'static str),
    /// It refuses what the kernel takes.
    Refused(&'static str),
}

/// A script and its answer. `ENDS` stands for the addresses of an SA from this host, `BACK` of one to it,
/// `GCM` and `CBC` for algorithms, `OUT` for a policy's selector.
pub struct Form {
    pub name: &'static str,
    pub script: &'static [&'static str],
    pub answer: Answer,
}

const fn same(name: &'static str, script: &'static [&'static str]) -> Form {
    Form { name, script, answer: Answer::Same }
}

const fn refused(name: &'static str, why: &'static str, script: &'static [&'static str]) -> Form {
    Form { name, script, answer: Answer::Refused(why) }
}

const fn differs(name: &'static str, why: &'static str, script: &'static [&'static str]) -> Form {
    Form { name, script, answer: Answer::Differs(why) }
}

pub const FORMS: &[Form] = &[
    same(
        "state_add_in_tunnel_mode",
        &["state add ENDS proto esp spi 0x1001 reqid 7 mode tunnel GCM", "state"],
    ),
    same("state_add_in_transport_mode", &["state add ENDS proto esp spi 0x1001 mode transport GCM", "state"]),
    same(
        "state_add_of_ah",
        &[
            "state add ENDS proto ah spi 0x1001 mode tunnel auth-trunc hmac(sha256) 0xKEY32 128",
            "state add BACK proto ah spi 0x1002 mode transport auth hmac(sha1) 0xKEY20",
            "state",
        ],
    ),
    same(
        "state_add_with_pairs",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel CBC",
            "state add ENDS proto esp spi 0x1002 mode tunnel enc aes 0xKEY32 auth sha1 0xKEY20",
            "state add ENDS proto esp spi 0x1003 mode tunnel enc ecb(cipher_null) \"\" auth-trunc hmac(md5) 0xKEY16 96",
            "state add ENDS proto esp spi 0x1004 mode tunnel enc rfc3686(ctr(aes)) 0xKEY20 auth-trunc cmac(aes) 0xKEY16 96",
            "state add ENDS proto esp spi 0x1005 mode tunnel enc cbc(des3_ede) 0x0123456789abcdef1123456789abcdef2123456789abcdef auth-trunc xcbc(aes) 0xKEY16 96",
            "state",
        ],
    ),
    same(
        "state_add_with_combined_modes",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel aead rfc4106(gcm(aes)) 0xKEY36 96",
            "state add ENDS proto esp spi 0x1002 mode tunnel aead rfc4309(ccm(aes)) 0xKEY19 64",
            "state add ENDS proto esp spi 0x1003 mode tunnel aead rfc4543(gcm(aes)) 0xKEY20 128",
            "state add ENDS proto esp spi 0x1004 mode tunnel aead rfc7539esp(chacha20,poly1305) 0xKEY36 128",
            "-s state",
        ],
    ),
    same(
        "state_add_with_esn",
        &["state add BACK proto esp spi 0x1001 mode tunnel replay-window 64 flag esn GCM", "-s state"],
    ),
    same(
        "state_add_with_numbers",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel replay-oseq 0x17 GCM",
            "state add BACK proto esp spi 0x1002 mode tunnel replay-window 128 replay-seq 0x1234 replay-seq-hi 0x2 flag esn GCM",
            "state",
        ],
    ),
    same(
        "state_add_with_a_replay_window",
        &[
            "state add BACK proto esp spi 0x1001 mode tunnel replay-window 32 GCM",
            "state add BACK proto esp spi 0x1002 mode tunnel replay-window 1024 GCM",
            "state",
        ],
    ),
    same(
        "state_add_with_limits",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM limit byte-soft 1000 limit byte-hard 2000 limit packet-soft 10 limit packet-hard 20 limit time-soft 300 limit time-hard 600 limit time-use-soft 400 limit time-use-hard 700",
            "-s state",
        ],
    ),
    same(
        "state_add_in_udp",
        &["state add ENDS proto esp spi 0x1001 mode tunnel GCM encap espinudp 4500 4501 0.0.0.0", "state"],
    ),
    same(
        "state_add_with_mark_and_interface",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM mark 3 mask 0xff",
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM mark 4 mask 0xff",
            "state add ENDS proto esp spi 0x1002 mode tunnel GCM if_id 9 output-mark 5 mask 0x7",
            "state",
            "state delete ENDS proto esp spi 0x1001 mark 3 mask 0xff",
            "state",
        ],
    ),
    same(
        "state_add_beside_one_without_a_mark",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM",
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM mark 3 mask 0xff",
            "state get ENDS proto esp spi 0x1001 mark 3 mask 0xff",
            "state add ENDS proto esp spi 0x1002 mode tunnel GCM mark 3 mask 0xff",
            "state get ENDS proto esp spi 0x1002",
            "state add ENDS proto esp spi 0x1002 mode tunnel GCM",
            "state get ENDS proto esp spi 0x1002 mark 0x103 mask 0xfff",
            "state delete ENDS proto esp spi 0x1002 mark 3 mask 0xff",
            "state",
        ],
    ),
    same(
        "state_update_of_a_reserved_spi_with_a_mark",
        &[
            "state allocspi BACK proto esp reqid 8 mode tunnel min 0x200 max 0x200",
            "state update BACK proto esp spi 0x200 reqid 8 mode tunnel GCM mark 3 mask 0xff",
            "state",
        ],
    ),
    same(
        "state_update_of_the_mark_of_packets_and_the_interface",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM if_id 9 output-mark 5",
            "state",
            "state update ENDS proto esp spi 0x1001 mode tunnel GCM",
            "state",
            "state update ENDS proto esp spi 0x1001 mode tunnel GCM if_id 10 output-mark 6 mask 0x7",
            "state",
        ],
    ),
    same(
        "state_add_with_flags",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM flag noecn decap-dscp nopmtudisc icmp",
            "state add ENDS proto esp spi 0x1002 mode tunnel GCM flag af-unspec extra-flag dont-encap-dscp",
            "state",
        ],
    ),
    same(
        "state_add_with_a_selector",
        &[
            "state add ENDS proto esp spi 0x1001 mode transport GCM sel src 192.0.2.1/32 dst 192.0.2.2/32 proto tcp sport 80 dport 1024",
            "state",
        ],
    ),
    same(
        "state_add_with_padding",
        &["state add ENDS proto esp spi 0x1001 mode tunnel GCM tfcpad 1300", "-s state"],
    ),
    same(
        "state_add_over_ipv6",
        &[
            "state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1001 reqid 1 mode tunnel GCM",
            "state",
            "state get src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1001",
        ],
    ),
    same(
        "state_add_twice",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM",
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM",
            "state update ENDS proto esp spi 0x1001 mode tunnel GCM limit packet-hard 9",
            "-s state",
        ],
    ),
    same("state_update_of_nothing", &["state update ENDS proto esp spi 0x1001 mode tunnel GCM"]),
    same(
        "state_update_of_a_reserved_spi",
        &[
            "state allocspi BACK proto esp reqid 8 mode tunnel min 0x200 max 0x200",
            "state update BACK proto esp spi 0x200 reqid 8 mode tunnel replay-window 32 GCM",
            "state",
        ],
    ),
    same(
        "state_update_of_ports",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM encap espinudp 4500 4500 0.0.0.0",
            "state update ENDS proto esp spi 0x1001 mode tunnel GCM encap espinudp 4500 4777 0.0.0.0",
            "state",
            "state update ENDS proto esp spi 0x1001 mode tunnel GCM",
        ],
    ),
    same(
        "state_allocspi",
        &[
            "state allocspi BACK proto esp reqid 8 mode tunnel min 0x200 max 0x200",
            "state allocspi BACK proto ah reqid 8 mode tunnel min 0x200 max 0x200",
            "state allocspi BACK proto esp reqid 9 mode tunnel min 0x200 max 0x200",
            "state allocspi BACK proto esp reqid 9 mode tunnel min 0x300 max 0x200",
        ],
    ),
    same(
        "state_get_and_delete",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM",
            "state get ENDS proto esp spi 0x1001",
            "state get ENDS proto esp spi 0x1002",
            "state delete ENDS proto esp spi 0x1001",
            "state delete ENDS proto esp spi 0x1001",
            "state",
        ],
    ),
    same(
        "state_list_by_words",
        &[
            "state add ENDS proto esp spi 0x1001 reqid 7 mode tunnel GCM",
            "state add BACK proto esp spi 0x1002 reqid 8 mode transport GCM",
            "state add BACK proto ah spi 0x1003 reqid 8 mode tunnel auth hmac(sha1) 0xKEY20",
            "state list src 192.0.2.1",
            "state list proto ah",
            "state list mode transport",
            "state list reqid 8",
            "state list nokeys",
            "state deleteall proto ah",
            "state",
            "state count",
            "state deleteall",
            "state count",
        ],
    ),
    same(
        "state_flush",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel GCM",
            "state add ENDS proto ah spi 0x1001 mode tunnel auth hmac(sha1) 0xKEY20",
            "state flush proto ah",
            "state",
            "state flush",
            "state",
            "state flush",
            "state flush proto hao",
            "state flush proto route2",
        ],
    ),
    same(
        "state_add_of_what_cannot_be",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel",
            "state add ENDS proto esp spi 0x1001 mode tunnel aead rfc4106(gcm(aes)) 0xKEY17 128",
            "state add ENDS proto esp spi 0x1001 mode tunnel aead rfc4106(gcm(aes)) 0xKEY20 120",
            "state add ENDS proto esp spi 0x1001 mode tunnel aead rfc4106(gcm(none)) 0xKEY20 128",
            "state add ENDS proto esp spi 0x1001 mode tunnel enc cbc(aes) 0xKEY17 auth hmac(sha1) 0xKEY20",
            "state add ENDS proto ah spi 0x1001 mode tunnel GCM",
            "state add ENDS proto ah spi 0x1001 mode tunnel enc cbc(aes) 0xKEY16",
            "state add ENDS proto esp spi 0x1001 mode transport tfcpad 100 GCM",
            "state add BACK proto esp spi 0x1001 mode tunnel replay-window 0 flag esn GCM",
            "state",
        ],
    ),
    refused(
        "state_add_of_ipcomp",
        "IPComp is not done",
        &["state add ENDS proto comp spi 0x1001 mode tunnel comp deflate"],
    ),
    refused(
        "state_add_in_beet_mode",
        "BEET mode is not done",
        &["state add ENDS proto esp spi 0x1001 mode beet GCM"],
    ),
    refused(
        "state_add_of_mobile_ipv6",
        "Mobile IPv6 is not done",
        &["state add src 2001:db8::1 dst 2001:db8::2 proto route2 mode ro coa 2001:db8::3"],
    ),
    refused(
        "state_add_without_integrity",
        "RFC 8221 4: encryption without authentication",
        &["state add ENDS proto esp spi 0x1001 mode tunnel enc cbc(aes) 0xKEY16"],
    ),
    refused(
        "state_add_with_a_drafts_icv",
        "the kernel's 96 bits are a draft's, RFC 4868 says 128",
        &["state add ENDS proto esp spi 0x1001 mode tunnel enc cbc(aes) 0xKEY16 auth hmac(sha256) 0xKEY32"],
    ),
    refused(
        "state_add_with_an_algorithm_of_linux",
        "the gateway has no Camellia",
        &[
            "state add ENDS proto esp spi 0x1001 mode tunnel enc cbc(camellia) 0xKEY16 auth hmac(sha1) 0xKEY20",
        ],
    ),
    same(
        "policy_add",
        &[
            "policy add OUT dir out tmpl ENDS proto esp reqid 7 mode tunnel",
            "policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in tmpl BACK proto esp reqid 7 mode tunnel",
            "policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir fwd tmpl BACK proto esp reqid 7 mode tunnel",
            "policy list dir out",
            "policy list dir in",
            "policy list dir fwd",
            "policy count",
            "policy deleteall",
            "policy count",
        ],
    ),
    same(
        "policy_add_with_fields",
        &[
            "policy add OUT proto tcp sport 1000 dport 80 dir out priority 17 if_id 5 mark 1 mask 0xf tmpl ENDS proto esp spi 0x1001 reqid 7 mode transport",
            "-s policy",
        ],
    ),
    same("policy_add_of_messages", &["policy add OUT proto icmp type 8 code 0 dir out", "policy"]),
    same("policy_add_of_gre", &["policy add OUT proto gre key 77 dir out", "policy"]),
    same(
        "policy_add_that_blocks",
        &["policy add OUT dir out action block priority 5 flag localok icmp", "-s policy"],
    ),
    same(
        "policy_add_with_limits",
        &["policy add OUT dir out limit packet-hard 5 limit time-soft 100", "-s policy"],
    ),
    same(
        "policy_add_with_two_templates",
        &[
            "policy add OUT dir out tmpl ENDS proto esp reqid 1 mode tunnel tmpl ENDS proto ah reqid 1 mode transport",
            "policy",
        ],
    ),
    same(
        "policy_add_with_what_is_optional",
        &[
            "policy add OUT dir in tmpl ENDS proto esp reqid 1 mode tunnel level use",
            "policy add OUT dir out tmpl ENDS proto comp reqid 1 mode transport level use",
            "policy",
        ],
    ),
    same(
        "policy_add_over_ipv6",
        &[
            "policy add src 2001:db8:1::/48 dst 2001:db8:2::/48 dir out tmpl src 2001:db8::1 dst 2001:db8::2 proto esp mode tunnel",
            "policy",
        ],
    ),
    same(
        "policy_add_twice",
        &[
            "policy add OUT dir out priority 5",
            "policy add OUT dir out priority 6",
            "policy update OUT dir out priority 7 action block",
            "policy",
        ],
    ),
    same("policy_update_of_nothing", &["policy update OUT dir out priority 7", "policy"]),
    same(
        "policy_get_and_delete",
        &[
            "policy add OUT dir out",
            "policy get OUT dir out",
            "policy get OUT dir in",
            "policy delete OUT dir out",
            "policy delete OUT dir out",
            "policy",
        ],
    ),
    same("policy_flush", &["policy add OUT dir out", "policy flush", "policy", "policy flush ptype main"]),
    same("policy_thresholds", &["policy set hthresh4 24 16 hthresh6 64 64", "-s policy count"]),
    refused("policy_of_the_table_sub", "it is for Mobile IPv6", &["policy add OUT dir out ptype sub"]),
    differs("policy_defaults", "what no policy names is discarded (RFC 4301 4.4.1)", &["policy getdefault"]),
    refused(
        "policy_setdefault",
        "what no policy names is discarded (RFC 4301 4.4.1)",
        &["policy setdefault in accept fwd accept out accept"],
    ),
];
