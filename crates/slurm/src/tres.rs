//! Trackable resources as Slurm writes them: `cpu=16,mem=191356M,billing=16,gres/gpu=1`.

/// Amounts of the resources that matter here; `None` if the text does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpus: Option<u64>,
    /// In bytes.
    pub memory: Option<u64>,
    /// Of all types. Types of a resource are listed in addition to their sum.
    pub gpus: Option<u64>,
}

impl Amounts {
    /// Reads the resources. What is no amount is left out.
    pub fn of(text: &str) -> Self {
        let mut amounts = Self::default();
        for (key, value) in text.split(',').filter_map(|item| item.split_once('=')) {
            match key.trim() {
                "cpu" => amounts.cpus = value.trim().parse().ok(),
                "mem" => amounts.memory = bytes(value.trim()),
                "gres/gpu" => amounts.gpus = value.trim().parse().ok(),
                _ => {}
            }
        }
        amounts
    }
}

/// An amount of memory, with a binary suffix or in MiB. Large amounts may have a fraction.
fn bytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text.get(number.len()..)? {
        "K" | "k" => 1 << 10,
        "" | "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        "T" | "t" => 1 << 40,
        "P" | "p" => 1 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let digits = fraction.get(..fraction.len().min(3))?;
    let scale = 10_u64.checked_pow(u32::try_from(digits.len()).ok()?)?;
    whole.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit)? / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        let amounts = |text| {
            let Amounts { cpus, memory, gpus } = Amounts::of(text);
            (cpus, memory, gpus)
        };
        let all = (Some(16), Some(191_356 << 20), Some(3));
        assert_eq!(amounts("cpu=16,mem=191356M,billing=16,gres/gpu=3,gres/gpu:a100=2,gres/gpu:h100=1"), all);
        assert_eq!(amounts(""), (None, None, None));
        assert_eq!(amounts("cpu=,mem=2X,gres/gpu=-1,=,x"), (None, None, None));
        for (text, mebibytes) in
            [("mem=2G", 2048), ("mem=1.50G", 1536), ("mem=512", 512), ("mem=1T", 1 << 20), ("mem=1024K", 1)]
        {
            assert_eq!(amounts(text).1, Some(mebibytes << 20), "{text}");
        }
        assert_eq!(amounts("mem=18446744073709551615P").1, None, "too large");
    }
}
