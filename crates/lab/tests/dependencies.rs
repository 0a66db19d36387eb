//! The part of `make audit` that runs with every test run: licences and sources of all dependencies, as
//! deny.toml allows them. cargo-deny also reads the texts of licences and fetches advisories.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Packages for Linux on both architectures, as recorded in the lock file.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--locked", "--offline", "--format-version", "1", "--all-features"]);
    for processor in ["x86_64", "aarch64"] {
        command.args(["--filter-platform", &format!("{processor}-unknown-linux-gnu")]);
    }
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Packages that are only in the lock file belong to other systems.
    let used: Vec<_> =
        metadata["resolve"]["nodes"].as_array().unwrap().iter().map(|n| n["id"].clone()).collect();
    let all = metadata["packages"].as_array().unwrap().iter();
    all.filter(|package| used.contains(&package["id"])).cloned().collect()
}

/// The strings between `key = [` and `]` in deny.toml.
fn allowed(key: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deny.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let list = text.split_once(&format!("\n{key} = [")).unwrap().1.split(']').next().unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an SPDX expression without parentheses is satisfied by these licences. `/` is an old notation for
/// `OR`.
fn holds(expression: &str, allowed: &[String]) -> bool {
    let is_allowed = |term: &str| allowed.iter().any(|licence| licence == term.trim());
    expression.replace('/', " OR ").split(" OR ").any(|all| all.split(" AND ").all(is_allowed))
}

/// The same with one level of parentheses: each becomes one term.
fn is_licensed(expression: &str, allowed: &[String]) -> bool {
    let mut allowed = allowed.to_vec();
    let mut flat = expression.to_owned();
    while let Some((before, rest)) = flat.split_once('(') {
        let Some((inner, after)) = rest.split_once(')') else { return false };
        let term = if holds(inner, &allowed) { "HOLDS" } else { "FAILS" };
        flat = format!("{before}{term}{after}");
    }
    allowed.push("HOLDS".to_owned());
    holds(&flat, &allowed)
}

#[test]
fn dependencies_have_licences_and_sources_that_are_allowed() {
    let (packages, licences) = (packages(), allowed("allow"));
    assert!(packages.len() > 100 && licences.contains(&"MIT".to_owned()), "{} packages", packages.len());
    let wrong = packages.iter().filter_map(|package| {
        let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
        let expression = package["license"].as_str().unwrap_or("none");
        let is_ours = package["source"].is_null();
        let from = package["source"].as_str().unwrap_or_default();
        let is_excepted = package["name"] == "libfuzzer-sys";
        if !is_licensed(expression, &licences) && !is_excepted {
            return Some(format!("{name}: the licence {expression} is not on the list of deny.toml"));
        }
        let is_registered = from == "registry+https://github.com/rust-lang/crates.io-index";
        (!is_ours && !is_registered).then(|| format!("{name}: from {from}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn licence_expressions_are_read_as_spdx_has_them() {
    let allowed = ["MIT", "ISC"].map(str::to_owned);
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "MIT AND ISC",
        "(GPL-3.0 OR MIT) AND ISC",
        "ISC AND (MIT)",
    ] {
        assert!(is_licensed(good, &allowed), "{good}");
    }
    for bad in ["none", "", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "(MIT", "MITX"] {
        assert!(!is_licensed(bad, &allowed), "{bad}");
    }
}
