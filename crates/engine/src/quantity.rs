//! Kubernetes quantities, such as `4Gi` and `500m`.

/// The amount in thousandths; `None` if the text is no quantity, or is negative or too large.
pub fn milli(text: &str) -> Option<u128> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let factor = factor(unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole = digits(whole)?.checked_mul(factor)?;
    let fraction = digits(fraction)?.checked_mul(factor)?.div_ceil(scale);
    whole.checked_add(fraction)
}

/// What one of this unit is in thousandths.
fn factor(unit: &str) -> Option<u128> {
    let exponent = |unit: &str, units: &[&str]| {
        units.iter().position(|known| *known == unit).and_then(|position| u32::try_from(position).ok())
    };
    match unit {
        "m" => return Some(1),
        "u" | "n" => return None,
        _ => {}
    }
    if let Some(power) = unit.strip_prefix(['e', 'E']).filter(|power| !power.is_empty()) {
        return 10_u128.checked_pow(power.parse().ok()?)?.checked_mul(1000);
    }
    let factor = match unit.strip_suffix('i') {
        Some(unit) => {
            1024_u128.checked_pow(exponent(unit, &["", "K", "M", "G", "T", "P", "E"]).filter(|power| *power > 0)?)?
        }
        None => 1000_u128.checked_pow(exponent(unit, &["", "k", "M", "G", "T", "P", "E"])?)?,
    };
    factor.checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::milli;

    #[test]
    fn units_and_fractions() {
        for (text, expected) in [
            ("2", Some(2_000)),
            ("500m", Some(500)),
            ("1.5", Some(1_500)),
            (".5", Some(500)),
            ("1k", Some(1_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("2e3", Some(2_000_000)),
            ("1E", Some(1_000_000_000_000_000_000_000)),
            ("", None),
            ("Gi", None),
            ("1i", None),
            ("-1", None),
            ("1.2.3", None),
            ("fast", None),
            ("99999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
    }
}
