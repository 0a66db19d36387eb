//! Verbs that change the SAs of a running gateway.

use crate::cli::{
    DirectionArg, LifetimeArgs, NewSaArgs, QueryArgs, SaAddArgs, SaDeleteArgs, SaReplaceArgs, SaUseArgs,
};
use crate::exit::{Failure, Kind, failure};
use crate::out::outln;
use crate::query::Asked;
use crate::table::{cell, print};
use serde_json::{Value, json};
use std::io::stdin;
use std::path::Path;
use testudo_control::config::protocol_name;
use testudo_control::keys::{self, KeyError};
use testudo_ipsec::PopulateFlags;
use testudo_lab::table::Table;
use zeroize::Zeroizing;

/// `testudo sa wanted`
pub fn wanted(args: &QueryArgs) -> Result<(), Failure> {
    send(args, &json!({ "verb": "sa-wanted" }), show_wanted)
}

fn show_wanted(list: &Value) {
    let mut table = Table::new(&["tunnel", "policy", "for", "packet", "asks since"]);
    for flow in list.as_array().into_iter().flatten() {
        let [tunnel, policy] = ["tunnel", "policy"].map(|key| cell(&flow[key]));
        let values = ["for", "packet"].map(|key| values_of(&flow[key]));
        let age = format!("{} s", cell(&flow["age_seconds"]));
        table.row([tunnel, policy].into_iter().chain(values).chain([age]).collect());
    }
    print(&table);
}

/// The values of a flow in a line, as `--for` takes them.
pub fn values_of(values: &Value) -> String {
    let protocol = |value: &Value| {
        let number = value.as_u64().and_then(|number| u8::try_from(number).ok());
        number.map_or_else(|| cell(value), protocol_name)
    };
    let word = |(name, value): (&str, &Value)| match name {
        "protocol" => format!("{name}={}", protocol(value)),
        // A port has no groups of digits.
        _ => format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
    };
    let known = PopulateFlags::NAMED.into_iter().filter_map(|(name, _)| Some((name, values.get(name)?)));
    known.map(word).collect::<Vec<_>>().join(" ")
}

/// `testudo sa add`
pub fn add(args: &SaAddArgs) -> Result<(), Failure> {
    let mut request = new_sas("sa-add", &args.new)?;
    request["use"] = args.use_now.into();
    request["for"] = json!(args.flow);
    request["policy"] = json!(args.policy);
    send(&args.gateway, &request, show_added)
}

/// `testudo sa replace`
pub fn replace(args: &SaReplaceArgs) -> Result<(), Failure> {
    let mut request = new_sas("sa-replace", &args.new)?;
    request["when_peer_does"] = args.when_peer_does.into();
    request["overlap_seconds"] = args.overlap.into();
    send(&args.gateway, &request, show_added)
}

/// `testudo sa use`
pub fn put_to_use(args: &SaUseArgs) -> Result<(), Failure> {
    let request = json!({ "verb": "sa-use", "tunnel": args.tunnel, "spi": args.spi });
    send(&args.gateway, &request, |answer| {
        outln!("tunnel {}: outbound SA {} is in use", cell(&answer["tunnel"]), hex(&answer["in_use"]));
    })
}

/// `testudo sa delete`
pub fn delete(args: &SaDeleteArgs) -> Result<(), Failure> {
    let direction = args.direction.map(|direction| match direction {
        DirectionArg::Inbound => "inbound",
        DirectionArg::Outbound => "outbound",
    });
    let request = json!({
        "verb": "sa-delete", "tunnel": args.tunnel, "spi": args.spi, "direction": direction, "force": args.force,
    });
    send(&args.gateway, &request, |answer| {
        let gone = &answer["deleted"];
        let (tunnel, direction) = (cell(&answer["tunnel"]), cell(&gone["direction"]));
        outln!("tunnel {tunnel}: {direction} SA {} is gone", hex(&gone["spi"]));
        if answer["tunnel_ends"] == true {
            outln!("tunnel {tunnel} has ended with it");
        }
    })
}

/// Sends a request and prints the answer: unchanged with `--json`, else through `show`.
fn send(args: &QueryArgs, request: &Value, show: fn(&Value)) -> Result<(), Failure> {
    let answer = Asked::find(args)?.change(request)?;
    if args.json {
        outln!("{answer}")
    } else {
        show(&answer)
    }
    Ok(())
}

fn new_sas(verb: &str, args: &NewSaArgs) -> Result<Value, Failure> {
    let text = key_text(&args.key_file)?;
    let of_file = |error: String| {
        Failure::new(Kind::Configuration, format!("key file {}: {error}", args.key_file.display()))
    };
    let wanted = [args.inbound, args.outbound].map(|spi| spi.is_some());
    let [inbound_key, outbound_key] = keys_of(&text, wanted).map_err(of_file)?;
    Ok(json!({
        "verb": verb, "tunnel": args.tunnel, "suite": args.suite, "worker": args.worker,
        "inbound": args.inbound, "inbound_key": inbound_key,
        "outbound": args.outbound, "outbound_key": outbound_key,
        "ephemeral": args.ephemeral, "resume": args.resume, "lifetime": lifetime(&args.lifetime),
    }))
}

fn key_text(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let text =
        if path == Path::new("-") { keys::read_from(stdin().lock()) } else { keys::read_private(path) };
    text.map_err(|error| {
        let help = match error {
            KeyError::Exposed { .. } => "; it must be readable by its owner alone: chmod 600",
            _ => "",
        };
        let words = format!("key file {}: {error}{help}", path.display());
        failure(Kind::Configuration)(words)
    })
}

/// The texts of the inbound and of the outbound key, those that are wanted: an empty line is between two.
fn keys_of(text: &[u8], [inbound, outbound]: [bool; 2]) -> Result<[Option<&str>; 2], String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is no text".to_owned())?;
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text.trim();
    while let Some((key, more)) = split_at_empty_line(rest) {
        parts.push(key);
        rest = more;
    }
    parts.push(rest);
    let wanted = usize::from(inbound) + usize::from(outbound);
    if parts.len() != wanted || parts.iter().any(|part| part.is_empty()) {
        let (found, empty) =
            (parts.iter().filter(|part| !part.is_empty()).count(), "with an empty line between");
        return Err(format!(
            "expected {wanted} {}, {empty}, and found {found}",
            if wanted == 1 { "key" } else { "keys" }
        ));
    }
    let mut parts = parts.into_iter();
    Ok([inbound, outbound].map(|is_wanted| if is_wanted { parts.next() } else { None }))
}

/// What is before the first empty line, and what is after it.
fn split_at_empty_line(text: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim().is_empty() {
            return Some((text[..at].trim(), text[at + line.len()..].trim()));
        }
        at += line.len();
    }
    None
}

fn lifetime(args: &LifetimeArgs) -> Value {
    let limits = [
        ("soft_seconds", args.soft_seconds),
        ("hard_seconds", args.hard_seconds),
        ("soft_packets", args.soft_packets),
        ("hard_packets", args.hard_packets),
        ("soft_bytes", args.soft_bytes),
        ("hard_bytes", args.hard_bytes),
    ];
    let given: serde_json::Map<_, _> =
        limits.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), json!(limit?)))).collect();
    if given.is_empty() { Value::Null } else { given.into() }
}

fn hex(spi: &Value) -> String {
    format!("{:#x}", spi.as_u64().unwrap_or(0))
}

fn show_added(answer: &Value) {
    let tunnel = cell(&answer["tunnel"]);
    for sa in answer["added"].as_array().into_iter().flatten() {
        outln!("tunnel {tunnel}: {} SA {} is added", cell(&sa["direction"]), hex(&sa["spi"]));
    }
    let leaving = answer["leaving"].as_array().into_iter().flatten();
    let leaving: Vec<_> =
        leaving.map(|sa| format!("{} {}", cell(&sa["direction"]), hex(&sa["spi"]))).collect();
    if !leaving.is_empty() {
        let when = if answer["waits_for_peer"] == true { " after the peer's first packet" } else { "" };
        let seconds = cell(&answer["overlap_seconds"]);
        outln!("tunnel {tunnel}: {} leave {seconds} s{when}", leaving.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_flow_is_shown_as_it_is_asked_for() {
        let values = json!({ "remote_ports": 50_053, "local": "10.1.0.5", "protocol": 17, "types": "8/0" });
        assert_eq!(values_of(&values), "local=10.1.0.5 protocol=udp remote_ports=50053 types=8/0");
        assert_eq!(values_of(&json!({ "protocol": 253 })), "protocol=253");
    }

    #[test]
    fn two_keys_of_a_file_have_an_empty_line_between_them() {
        let both = [true, true];
        let found = |text: &'static str, wanted| keys_of(text.as_bytes(), wanted);
        assert_eq!(found("11\n22\n\n33\n", both), Ok([Some("11\n22"), Some("33")]));
        assert_eq!(found("\n 0x11 \r\n \r\n33", both), Ok([Some("0x11"), Some("33")]));
        assert_eq!(found("11 22\n33\n", [true, false]), Ok([Some("11 22\n33"), None]));
        assert_eq!(found("11\n", [false, true]), Ok([None, Some("11")]));
        let wrong =
            [("11\n22\n", both), ("11\n\n22\n\n33", both), ("11\n\n22", [true, false]), ("", [true, false])];
        for (text, wanted) in wrong {
            let error = found(text, wanted).unwrap_err();
            assert!(error.starts_with("expected ") && !error.contains("11"), "{error}");
        }
    }
}
