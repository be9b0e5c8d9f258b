//! One entry for everything a person does.
fn main() {}
