//! The checks of the layer `validate`: a stable id, a level and whether a check is on by default.
//! `docs/reference/checks/` has a text for each.

/// How sure the layer is that the call or request goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The call or the request must fail, or its outcome is undefined.
    Error,
    /// The program probably does not mean what it does.
    Warning,
}

impl Level {
    /// The name of the level in messages and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The id in messages and settings, such as `MR-01`.
    pub id: &'static str,
    /// The level of its messages.
    pub level: Level,
    /// True if the check is off by default, because it is slow or reports correct programs.
    pub optional: bool,
}

macro_rules! checks {
    (@optional) => { false };
    (@optional optional) => { true };
    ($($name:ident $id:literal $level:ident $($optional:ident)?;)*) => {
        /// The number of a check.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Id { $(#[doc = $id] $name,)* }
        /// All checks, indexed by [`Id`].
        pub static CHECKS: &[Check] = &[$(
            Check { id: $id, level: Level::$level, optional: checks!(@optional $($optional)?) },
        )*];
    };
}

checks! {
    Mr01 "MR-01" Error;
    Mr02 "MR-02" Error;
    Mr03 "MR-03" Error;
    Mr04 "MR-04" Error;
    Mr05 "MR-05" Error;
    Mr06 "MR-06" Error;
    Mr07 "MR-07" Warning optional;
    Mr08 "MR-08" Error optional;
    Mr09 "MR-09" Warning optional;
    Mr10 "MR-10" Warning optional;
    Mr11 "MR-11" Warning;
    Mr12 "MR-12" Warning;
    Mr13 "MR-13" Warning;
    Mr14 "MR-14" Warning optional;
    Mr15 "MR-15" Error;
    Mr16 "MR-16" Error;
    Mr17 "MR-17" Error;
    Mr18 "MR-18" Error;
    Mr19 "MR-19" Error;
    Qp01 "QP-01" Error;
    Qp02 "QP-02" Error;
    Qp03 "QP-03" Error;
    Qp04 "QP-04" Error;
    Qp05 "QP-05" Error;
    Qp06 "QP-06" Warning optional;
    Qp07 "QP-07" Warning;
    Qp08 "QP-08" Error;
    Qp09 "QP-09" Warning;
    Qp10 "QP-10" Warning optional;
    Qp11 "QP-11" Warning optional;
    Qp12 "QP-12" Error;
    Qp13 "QP-13" Error;
    Qp14 "QP-14" Warning optional;
    Qp15 "QP-15" Error;
    Qp16 "QP-16" Warning optional;
    Qp17 "QP-17" Warning optional;
    Qp18 "QP-18" Error;
    Qp19 "QP-19" Error;
    Qp20 "QP-20" Error;
    Qp21 "QP-21" Error;
    Wr01 "WR-01" Error;
    Wr02 "WR-02" Error;
    Wr03 "WR-03" Error;
    Wr04 "WR-04" Warning;
    Wr05 "WR-05" Error;
    Wr06 "WR-06" Warning optional;
    Wr07 "WR-07" Error;
    Wr08 "WR-08" Error;
    Wr09 "WR-09" Error;
    Wr10 "WR-10" Warning optional;
    Wr11 "WR-11" Error;
    Wr12 "WR-12" Warning;
    Wr13 "WR-13" Warning;
    Wr14 "WR-14" Warning;
    Wr15 "WR-15" Error;
    Wr16 "WR-16" Warning;
    Wr17 "WR-17" Error;
    Wr18 "WR-18" Error;
    Cq01 "CQ-01" Error;
    Cq02 "CQ-02" Error;
    Cq03 "CQ-03" Warning;
    Cq04 "CQ-04" Warning optional;
    Cq05 "CQ-05" Warning;
    Cq06 "CQ-06" Error;
    Cq07 "CQ-07" Error;
    Cq08 "CQ-08" Error;
    Cq09 "CQ-09" Warning optional;
    Cq10 "CQ-10" Warning optional;
    Cq11 "CQ-11" Error;
    Cq12 "CQ-12" Error;
    Cq13 "CQ-13" Warning;
    Cq14 "CQ-14" Error;
    Ob01 "OB-01" Error;
    Ob02 "OB-02" Error;
    Ob03 "OB-03" Error;
    Ob04 "OB-04" Warning optional;
    Ob05 "OB-05" Error;
    Ob06 "OB-06" Warning optional;
    Ob07 "OB-07" Error;
    Ob08 "OB-08" Error;
    Ob09 "OB-09" Error;
    Cm01 "CM-01" Error;
    Cm02 "CM-02" Error;
    Cm03 "CM-03" Error;
    Cm04 "CM-04" Error;
    Cm05 "CM-05" Warning;
    Cm06 "CM-06" Error;
    Cm07 "CM-07" Warning optional;
    Cm08 "CM-08" Warning optional;
}

impl Id {
    /// The check with this number.
    pub fn check(self) -> Check {
        CHECKS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_page_and_each_page_a_check() {
        let text = concat!(
            include_str!("../../../docs/reference/checks/regions.md"),
            include_str!("../../../docs/reference/checks/queue-pairs.md"),
            include_str!("../../../docs/reference/checks/requests.md"),
            include_str!("../../../docs/reference/checks/completions.md"),
            include_str!("../../../docs/reference/checks/objects.md"),
            include_str!("../../../docs/reference/checks/connections.md"),
        );
        let pages: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .filter_map(|title| title.split(':').next())
            .filter(|id| id.as_bytes().get(2) == Some(&b'-'))
            .collect();
        let ids: Vec<&str> = CHECKS.iter().map(|check| check.id).collect();
        assert_eq!(pages, ids);
    }
}
