//! What a network does to packets, for tests where the kernel has no netem (tc-netem(8)): it loses some, brings some twice and some late, and
//! marks some as a switch does whose queue grows, by a seed.

/// How bad it is; in millionths of all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    loss: u32,
    duplicate: u32,
    reorder: u32,
    mark: u32,
    seed: u64,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It goes.
    Through,
    /// It does not arrive.
    Lost,
    /// It arrives twice.
    Twice,
    /// It arrives behind those that are sent next.
    Late,
    /// The packet arrives with a congestion mark, if its ECN field permits marks (RFC 3168).
    Marked,
}

/// What becomes of packets, one after the other: with the same seed the same.
#[derive(Clone, Copy, Debug)]
pub struct Passages {
    weather: Weather,
    drawn: u64,
}

/// Of so many are the parts that `Weather` is in.
const ALL: u32 = 1_000_000;

impl Weather {
    /// From words such as `loss=5% duplicate=1% reorder=0.5% mark=2% seed=7`, any of them, with no more than all packets in sum; `None`: it
    /// is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut weather = Self::default();
        for word in text.split_ascii_whitespace() {
            let (name, value) = word.split_once('=')?;
            match name {
                "loss" => weather.loss = parts(value)?,
                "duplicate" => weather.duplicate = parts(value)?,
                "reorder" => weather.reorder = parts(value)?,
                "mark" => weather.mark = parts(value)?,
                "seed" => weather.seed = value.parse().ok()?,
                _ => return None,
            }
        }
        let Self { loss, duplicate, reorder, mark, .. } = weather;
        (loss + duplicate + reorder + mark <= ALL).then_some(weather)
    }

    /// What it does, from the beginning.
    #[must_use]
    pub const fn passages(self) -> Passages {
        Passages { weather: self, drawn: 0 }
    }
}

impl Passages {
    /// What becomes of the next packet.
    pub fn draw(&mut self) -> Passage {
        self.drawn = self.drawn.wrapping_add(1);
        let Weather { loss, duplicate, reorder, mark, seed } = self.weather;
        let drawn = mix(seed ^ mix(self.drawn)) % u64::from(ALL);
        if drawn < u64::from(loss) {
            Passage::Lost
        } else if drawn < u64::from(loss + duplicate) {
            Passage::Twice
        } else if drawn < u64::from(loss + duplicate + reorder) {
            Passage::Late
        } else if drawn < u64::from(loss + duplicate + reorder + mark) {
            Passage::Marked
        } else {
            Passage::Through
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

/// SplitMix64's last steps (Steele, Lea, Flood 2014).
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
        let weather =
            Weather { loss: 50_000, duplicate: 10_000, reorder: 1_500, mark: 20_000, seed: 7 };
        for text in [
            "loss=5% duplicate=1% reorder=0.15% mark=2% seed=7",
            " seed=7  mark=2.0% loss=5.0000% reorder=0.15% duplicate=01% ",
        ] {
            assert_eq!(Weather::parse(text), Some(weather));
        }
        assert_eq!(Weather::parse(""), Some(Weather::default()));
        assert_eq!(Weather::parse("loss=100%").map(|weather| weather.loss), Some(ALL));
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
            assert_eq!(Weather::parse(text), None, "{text}");
        }
    }

    #[test]
    fn so_many_have_that_fate_and_the_same_with_the_same_seed() {
        let weather = Weather::parse("loss=5% duplicate=1% reorder=20% mark=10% seed=3");
        let weather = weather.expect("words");
        let (mut one, mut other) = (weather.passages(), weather.passages());
        let mut counts = [0; 5];
        for _ in 0..100_000 {
            let passage = one.draw();
            assert_eq!(passage, other.draw());
            counts[passage as usize] += 1;
        }
        for (count, expected) in counts.into_iter().zip([64_000_i32, 5_000, 1_000, 20_000, 10_000])
        {
            // Ten standard deviations at least: the seed is always the same.
            assert!(i32::abs(count - expected) < 1_500, "{counts:?}");
        }
        let mut another = Weather { seed: 4, ..weather }.passages();
        let mut again = weather.passages();
        assert!((0..1000).any(|_| another.draw() != again.draw()), "seeds differ");
    }
}
