//! Table 2: what a gigabit costs, of the rows of `testudo lab efficiency`.

use serde_json::Value;

use super::super::reading::{Length, Reading, Wrong, number, text};
use crate::statistics::Spread;

/// This machine's throughput, and what it costs where the user has said what the machine does.
pub(super) fn table_2(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    let is_of = |row: &&Value, test: &str| row.get("test").and_then(Value::as_str) == Some(test);
    for row in rows.iter().filter(|row| is_of(row, "cost")) {
        let of = format!("{}, frames of {}", text(row, "suite")?, Length::of(row, "frame_bytes")?.words());
        let rate = number(row, "throughput_gbit_per_second")?;
        reading.find(format!("this machine, {of}: throughput"), "Gbit/s", Spread::of([rate]));
        reading.remark(format!("{of}: engine {}.", text(row, "engine")?));
        if row.get("price").is_some_and(|price| !price.is_null()) {
            let (machine, currency) = (text(row, "machine")?, text(row, "currency")?);
            let what = format!("this machine ({machine}, {currency} {})", number(row, "price")?);
            let cost = number(row, "mbit_per_second_per_price")?;
            reading.find(format!("{what}: Mbit/s for each {currency}"), "Mbit/s", Spread::of([cost]));
        } else {
            reading.remark("What this machine costs was not said: --prices FILE (docs/LAB.md).".to_owned());
        }
        for (member, unit, what) in [("watts", "W", "power"), ("joules_per_byte", "J/byte", "energy")] {
            if row.get(member).is_some_and(|figure| !figure.is_null()) {
                reading.find(format!("this machine, {of}: {what}"), unit, Spread::of([number(row, member)?]));
            }
        }
        reading.remark_notes(row, &of);
    }
    for row in rows.iter().filter(|row| row.get("price_of_price_file").is_some_and(|price| !price.is_null()))
    {
        let (price, currency) = (number(row, "price_of_price_file")?, text(row, "currency_of_price_file")?);
        let megabits = number(row, "throughput_gbit_per_second")? * 1e3 / price.max(f64::MIN_POSITIVE);
        reading.remark(format!(
            "{} at today's price of {currency} {price}: {megabits:.2} Mbit/s for each {currency}, by the paper's throughput.",
            text(row, "system")?
        ));
    }
    if reading.findings.is_empty() { Err("no row of what is forwarded".to_owned()) } else { Ok(reading) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cost(prices: &Value) -> Value {
        json!({ "test": "cost", "suite": "aes128-sha1", "frame_bytes": 1280, "engine": "e", "notes": ["quiet"],
            "throughput_gbit_per_second": 2.5, "watts": null, "joules_per_byte": null, "machine": "m",
            "currency": "EUR", "price": prices, "mbit_per_second_per_price": prices.as_f64().map(|p| 2500.0 / p) })
    }

    #[test]
    fn what_a_machine_costs_is_found_where_its_user_says_so_and_nowhere_else() {
        let paper = json!({ "test": "paper", "system": "PIPSEA", "throughput_gbit_per_second": 11.1,
            "price_of_price_file": 222.0, "currency_of_price_file": "EUR" });
        let reading = table_2(&[cost(&json!(1250.0)), paper]).unwrap();
        let found: Vec<(&str, f64)> =
            reading.findings.iter().map(|f| (f.what.as_str(), f.here.unwrap().median)).collect();
        let expected = [
            ("this machine, aes128-sha1, frames of 1280 bytes: throughput", 2.5),
            ("this machine (m, EUR 1250): Mbit/s for each EUR", 2.0),
        ];
        assert_eq!(
            found, expected,
            "no power that no meter showed, and no paper's throughput among what was measured"
        );
        let of_pipsea =
            "PIPSEA at today's price of EUR 222: 50.00 Mbit/s for each EUR, by the paper's throughput.";
        assert!(reading.remarks.iter().any(|remark| remark == of_pipsea), "{:?}", reading.remarks);

        let without = table_2(&[cost(&Value::Null)]).unwrap();
        assert_eq!(without.findings.len(), 1);
        assert!(without.remarks.iter().any(|remark| remark.contains("--prices FILE")));
        for wrong in [json!([]), json!([{ "test": "cost" }]), json!([cost(&json!(-1.0))])] {
            assert!(table_2(wrong.as_array().unwrap()).is_err(), "{wrong}");
        }
    }
}
