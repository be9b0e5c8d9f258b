//! Network impairment for tests without netem (tc-netem(8)): loses, duplicates, delays and marks
//! packets, determined by a seed.

/// The rates of impairment, in millionths of all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairmentRates {
    loss: u32,
    duplicate: u32,
    reorder: u32,
    ecn_mark: u32,
    seed: u64,
}

/// The treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImpairmentEffect {
    /// The packet passes.
    Pass,
    /// The packet is lost.
    Lose,
    /// The packet arrives twice.
    Duplicate,
    /// The packet arrives behind later ones.
    Reorder,
    /// The packet arrives with a congestion mark, if its ECN field permits marks (RFC 3168).
    Marked,
}

/// The sequence of impairments, determined by the seed.
#[derive(Clone, Copy, Debug)]
pub struct ImpairmentSequence {
    rates: ImpairmentRates,
    draw_count: u64,
}

/// The denominator of the rates in `ImpairmentRates`.
const ALL: u32 = 1_000_000;

impl ImpairmentRates {
    /// Parses words such as `loss=5% duplicate=1% reorder=0.5% mark=2% seed=7`, in any selection,
    /// whose sum is at most 100 %; `None`: invalid text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut rates = Self::default();
        for word in text.split_ascii_whitespace() {
            let (name, value) = word.split_once('=')?;
            match name {
                "loss" => rates.loss = parts(value)?,
                "duplicate" => rates.duplicate = parts(value)?,
                "reorder" => rates.reorder = parts(value)?,
                "mark" => rates.ecn_mark = parts(value)?,
                "seed" => rates.seed = value.parse().ok()?,
                _ => return None,
            }
        }
        let Self { loss, duplicate, reorder, ecn_mark: mark, .. } = rates;
        (loss + duplicate + reorder + mark <= ALL).then_some(rates)
    }

    /// The sequence of impairments from its start.
    #[must_use]
    pub const fn passages(self) -> ImpairmentSequence {
        ImpairmentSequence { rates: self, draw_count: 0 }
    }
}

impl ImpairmentSequence {
    /// The treatment of the next packet.
    pub fn next_effect(&mut self) -> ImpairmentEffect {
        self.draw_count = self.draw_count.wrapping_add(1);
        let ImpairmentRates { loss, duplicate, reorder, ecn_mark: mark, seed } = self.rates;
        let drawn = mix(seed ^ mix(self.draw_count)) % u64::from(ALL);
        if drawn < u64::from(loss) {
            ImpairmentEffect::Lose
        } else if drawn < u64::from(loss + duplicate) {
            ImpairmentEffect::Duplicate
        } else if drawn < u64::from(loss + duplicate + reorder) {
            ImpairmentEffect::Reorder
        } else if drawn < u64::from(loss + duplicate + reorder + mark) {
            ImpairmentEffect::Marked
        } else {
            ImpairmentEffect::Pass
        }
    }
}

/// A percentage with up to four decimals, in millionths.
fn parts(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let are_digits = |text: &str| text.bytes().all(|letter| letter.is_ascii_digit());
    if decimals.len() > 4 || whole.is_empty() || !are_digits(whole) || !are_digits(decimals) {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|percent| *percent <= 100)?;
    let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
    let parts = whole * (ALL / 100) + decimals;
    (parts <= ALL).then_some(parts)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
const fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_percentages_and_a_seed() {
        let rates = ImpairmentRates {
            loss: 50_000,
            duplicate: 10_000,
            reorder: 1_500,
            ecn_mark: 20_000,
            seed: 7,
        };
        for text in [
            "loss=5% duplicate=1% reorder=0.15% mark=2% seed=7",
            " seed=7  mark=2.0% loss=5.0000% reorder=0.15% duplicate=01% ",
        ] {
            assert_eq!(ImpairmentRates::parse(text), Some(rates));
        }
        assert_eq!(ImpairmentRates::parse(""), Some(ImpairmentRates::default()));
        assert_eq!(ImpairmentRates::parse("loss=100%").map(|rates| rates.loss), Some(ALL));
    }

    #[test]
    fn other_words_are_refused() {
        for text in [
            "loss",
            "loss=5",
            "loss=%",
            "loss=.5%",
            "loss=-1%",
            "loss=101%",
            "loss=100.1%",
            "loss=0.00001%",
            "delay=5%",
            "seed=x",
            "loss=60% reorder=50%",
            "loss=60% mark=50%",
            "loss=1,5%",
            "loss=99999999999%",
        ] {
            assert_eq!(ImpairmentRates::parse(text), None, "{text}");
        }
    }

    #[test]
    fn rates_are_kept_and_equal_seeds_give_equal_sequences() {
        let rates = ImpairmentRates::parse("loss=5% duplicate=1% reorder=20% mark=10% seed=3");
        let rates = rates.expect("words");
        let (mut one, mut other) = (rates.passages(), rates.passages());
        let mut counts = [0; 5];
        for _ in 0..100_000 {
            let passage = one.next_effect();
            assert_eq!(passage, other.next_effect());
            counts[passage as usize] += 1;
        }
        for (count, expected) in counts.into_iter().zip([64_000_i32, 5_000, 1_000, 20_000, 10_000])
        {
            // At least ten standard deviations; the seed is fixed.
            assert!(i32::abs(count - expected) < 1_500, "{counts:?}");
        }
        let mut another = ImpairmentRates { seed: 4, ..rates }.passages();
        let mut again = rates.passages();
        assert!((0..1000).any(|_| another.next_effect() != again.next_effect()), "seeds differ");
    }
}
