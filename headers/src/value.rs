//! Values of constant expressions: integers, shifts, bitwise or, and names of constants. `rust.rs`
//! needs the values of constants, which become enumerators in C.

use std::collections::BTreeMap;
use syn::{BinOp, Expr, Lit, UnOp};

/// The value of an expression, if the expression has a supported form.
pub(crate) fn evaluate(expr: &Expr, known: &BTreeMap<String, i128>) -> Option<i128> {
    match expr {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Int(int) => int.base10_parse().ok(),
            _ => None,
        },
        Expr::Paren(inner) => evaluate(&inner.expr, known),
        Expr::Cast(cast) => evaluate(&cast.expr, known),
        Expr::Unary(unary) => match unary.op {
            UnOp::Neg(_) => evaluate(&unary.expr, known)?.checked_neg(),
            _ => None,
        },
        Expr::Binary(binary) => {
            let left = evaluate(&binary.left, known)?;
            let right = evaluate(&binary.right, known)?;
            match binary.op {
                BinOp::Shl(_) => left.checked_shl(right.try_into().ok()?),
                BinOp::BitOr(_) => Some(left | right),
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                _ => None,
            }
        }
        Expr::Path(path) => known.get(&path.path.segments.last()?.ident.to_string()).copied(),
        _ => None,
    }
}

/// How C writes the value as an enumerator: bits as shifts where the source does, else a number.
pub(crate) fn written(expr: &Expr, value: i128) -> String {
    if let Expr::Binary(binary) = expr
        && matches!(binary.op, BinOp::Shl(_))
        && value < i128::from(i32::MAX)
        && value.count_ones() == 1
    {
        return format!("1 << {}", value.trailing_zeros());
    }
    let hexadecimal = matches!(expr, Expr::Lit(lit) if matches!(&lit.lit, Lit::Int(int) if int.token().to_string().starts_with("0x")));
    if hexadecimal || value > i128::from(i32::MAX) {
        return format!("{value:#x}");
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_crate_have_values() {
        let known = BTreeMap::from([("ONE".to_string(), 1)]);
        let of = |text: &str| {
            let expr = syn::parse_str(text).unwrap();
            evaluate(&expr, &known).map(|value| (value, written(&expr, value)))
        };
        assert_eq!(of("1 << 4"), Some((16, "1 << 4".into())));
        assert_eq!(of("-5"), Some((-5, "-5".into())));
        assert_eq!(of("0x3ff0_0000"), Some((0x3ff0_0000, "0x3ff00000".into())));
        assert_eq!(of("1 << 31"), Some((1 << 31, "0x80000000".into())));
        assert_eq!(of("ONE | 6"), Some((7, "7".into())));
        assert_eq!(of("f()"), None);
    }
}
