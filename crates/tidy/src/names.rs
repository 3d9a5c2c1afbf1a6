//! Names of types, and the files that implement them.

use std::path::{Path, PathBuf};

use syn::{
    Item, ItemImpl, ItemMod, Type,
    visit::{self, Visit},
};

use crate::source::{Crate, is_test_only};

/// A type and where the workspace defines it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeName {
    /// Name of the struct, enum, trait, union or alias.
    pub name: String,
    /// File of the definition.
    pub file: PathBuf,
    /// Line of the definition.
    pub line: usize,
}

/// Lists the types that a crate defines outside test code, private ones included.
pub fn type_names(of: &Crate) -> Vec<TypeName> {
    let mut names = Vec::new();
    for module in of.modules.values() {
        let mut collector = Definitions {
            file: &module.file,
            names: &mut names,
        };
        collector.visit_file(&module.syntax);
    }
    names
}

/// Lists the files of a crate that have an inherent `impl` of a type.
pub fn impl_files(of: &Crate, name: &str) -> Vec<PathBuf> {
    let has_impl = |item: &Item| match item {
        Item::Impl(ItemImpl {
            trait_: None,
            self_ty,
            attrs,
            ..
        }) if !is_test_only(attrs) => match &**self_ty {
            Type::Path(path) => path
                .path
                .segments
                .last()
                .is_some_and(|last| last.ident == name),
            _ => false,
        },
        _ => false,
    };
    let modules = of.modules.values();
    modules
        .filter(|module| module.syntax.items.iter().any(has_impl))
        .map(|module| module.file.clone())
        .collect()
}

struct Definitions<'a> {
    file: &'a Path,
    names: &'a mut Vec<TypeName>,
}

impl<'ast> Visit<'ast> for Definitions<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (ident, attributes) = match item {
            Item::Struct(item) => (&item.ident, &item.attrs),
            Item::Enum(item) => (&item.ident, &item.attrs),
            Item::Trait(item) => (&item.ident, &item.attrs),
            Item::Type(item) => (&item.ident, &item.attrs),
            Item::Union(item) => (&item.ident, &item.attrs),
            _ => return visit::visit_item(self, item),
        };
        if !is_test_only(attributes) {
            self.names.push(TypeName {
                name: ident.to_string(),
                file: self.file.to_owned(),
                line: ident.span().start().line,
            });
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test_only(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}
