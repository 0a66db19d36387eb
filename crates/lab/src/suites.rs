//! Suites on the command line, and what a configuration must confirm about them.

use clap::builder::{PossibleValue, PossibleValuesParser};
use testudo_crypto::{NonceRule, Requirement, Suite};

/// Accepts the suites of a gateway that `is_in` accepts. There are too many to list: help and errors show
/// those that RFC 8221 recommends.
pub(crate) fn parser(is_in: impl Fn(&Suite) -> bool) -> PossibleValuesParser {
    let value =
        |suite: &Suite| PossibleValue::new(suite.to_string()).hide(suite.requirement() > Requirement::Should);
    PossibleValuesParser::new(Suite::ALL.iter().filter(|suite| is_in(suite)).map(value))
}

/// The same, and the integrity algorithms of AH.
pub(crate) fn parser_with_ah(is_in: impl Fn(&Suite) -> bool) -> PossibleValuesParser {
    let value = |name: String, suite: &Suite| {
        PossibleValue::new(name).hide(suite.requirement() > Requirement::Should)
    };
    let esp = Suite::ALL.iter().filter(|suite| is_in(suite)).map(|suite| value(suite.to_string(), suite));
    let ah = Suite::all_for_ah().filter_map(|suite| Some(value(suite.ah_name()?.to_string(), &suite)));
    PossibleValuesParser::new(esp.chain(ah.collect::<Vec<_>>()).collect::<Vec<_>>())
}

/// Confirms that nonces are sequence numbers.
pub(crate) const ALLOW_COUNTER_NONCE: &str = "allow_manual_counter_nonce = true\n";

/// The lines of a `[[tunnel]]` without which a configuration refuses one of these suites.
pub(crate) fn confirmations(suite: Suite, ah_suite: Option<Suite>) -> String {
    let mut lines = String::new();
    if suite.is_legacy() || ah_suite.is_some_and(|suite| suite.is_legacy()) {
        lines += "allow_legacy = true\n";
    }
    if suite.nonce_rule() == NonceRule::Counter {
        lines += ALLOW_COUNTER_NONCE;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::builder::TypedValueParser;

    #[test]
    fn all_suites_are_accepted_and_the_recommended_ones_are_shown() {
        let shown = |value: &PossibleValue| !value.is_hide_set();
        let values: Vec<_> = parser(|_| true).possible_values().unwrap().collect();
        assert_eq!(values.len(), Suite::ALL.len());
        let recommended: Vec<_> =
            values.iter().filter(|value| shown(value)).map(PossibleValue::get_name).collect();
        assert!(
            recommended.contains(&"aes256-sha512") && !recommended.contains(&"des-md5"),
            "{recommended:?}"
        );
    }

    #[test]
    fn what_a_configuration_wants_confirmed_is_confirmed() {
        let confirmed = |name: &str| confirmations(name.parse().unwrap(), None);
        assert_eq!(confirmed("aes128gcm16"), "");
        assert_eq!(confirmed("3des-sha1"), "allow_legacy = true\n");
        assert_eq!(confirmed("aes128ccm8iiv"), "allow_manual_counter_nonce = true\n");
        let (suite, md5) = ("aes128gcm16".parse().unwrap(), Suite::for_ah("md5").unwrap());
        assert_eq!(confirmations(suite, Some(md5)), "allow_legacy = true\n");
    }
}
