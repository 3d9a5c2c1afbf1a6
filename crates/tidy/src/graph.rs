//! Import graph between the modules of a crate, and its cycles.

use std::collections::{BTreeMap, BTreeSet};

use syn::{
    Attribute, Item, ItemFn, ItemImpl, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

use crate::source::{Crate, is_test_only};

type ModulePath = Vec<String>;

/// Lists the import cycles of a crate: each is a set of modules that reach one another.
///
/// Module A imports module B where A names an item that B defines, directly or through a
/// re-export. Declaring or re-exporting a child is not an import, and neither is test code.
pub fn cycles(of: &Crate) -> Vec<Vec<String>> {
    let edges = imports(of);
    let reach: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = edges
        .keys()
        .map(|module| (module, reachable(&edges, module)))
        .collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, reached) in &reach {
        if reached.contains(module) {
            let peers = reached
                .iter()
                .filter(|peer| reach.get(*peer).is_some_and(|back| back.contains(module)));
            found.insert(
                peers
                    .map(|path| format!("crate::{}", path.join("::")))
                    .collect(),
            );
        }
    }
    found.into_iter().collect()
}

fn reachable<'e>(
    edges: &'e BTreeMap<ModulePath, BTreeSet<ModulePath>>,
    from: &ModulePath,
) -> BTreeSet<&'e ModulePath> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&ModulePath> = edges.get(from).into_iter().flatten().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(edges.get(module).into_iter().flatten());
        }
    }
    reached
}

/// Modules that each module imports from.
fn imports(of: &Crate) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
    let index = Index::new(of);
    let mut edges: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
    for (path, module) in &of.modules {
        let mut collector = Paths::default();
        collector.visit_file(&module.syntax);
        let targets = edges.entry(path.clone()).or_default();
        for used in collector.paths {
            if let Some(target) = index.defining_module(path, &used, 0)
                && target != *path
            {
                targets.insert(target);
            }
        }
    }
    edges
}

/// Names that each module re-exports, with the path of the original.
struct Index<'c> {
    of: &'c Crate,
    re_exports: BTreeMap<ModulePath, Vec<(String, Vec<String>)>>,
}

impl<'c> Index<'c> {
    fn new(of: &'c Crate) -> Self {
        let mut re_exports: BTreeMap<ModulePath, Vec<(String, Vec<String>)>> = BTreeMap::new();
        for (path, module) in &of.modules {
            let exported = re_exports.entry(path.clone()).or_default();
            for item in &module.syntax.items {
                if let Item::Use(item) = item
                    && !is_test_only(&item.attrs)
                {
                    flatten(&item.tree, &mut Vec::new(), exported);
                }
            }
        }
        Index { of, re_exports }
    }

    /// Resolves a path used in `from` to the module that defines its item; `None` for items of
    /// other crates.
    fn defining_module(
        &self,
        from: &ModulePath,
        used: &[String],
        depth: usize,
    ) -> Option<ModulePath> {
        if depth > 16 {
            return None;
        }
        let mut at = from.clone();
        let mut rest = used;
        match used.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &used[1..];
            }
            "self" => rest = &used[1..],
            "super" => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                let mut child = from.clone();
                child.push(first.to_owned());
                if !self.of.modules.contains_key(&child) {
                    return None;
                }
            }
        }
        while let Some((segment, below)) = rest.split_first() {
            let mut child = at.clone();
            child.push(segment.clone());
            if self.of.modules.contains_key(&child) {
                at = child;
                rest = below;
                continue;
            }
            let exported = self.re_exports.get(&at).into_iter().flatten();
            for (name, original) in exported {
                let resolves = name == segment || name == "*";
                if resolves
                    && let Some(module) = self.defining_module(&at, original, depth + 1)
                    && (name != "*" || self.defines(&module, segment))
                {
                    return Some(module);
                }
            }
            break;
        }
        Some(at)
    }

    fn defines(&self, module: &ModulePath, name: &str) -> bool {
        let items = self
            .of
            .modules
            .get(module)
            .map(|module| &module.syntax.items);
        items.into_iter().flatten().any(|item| match item {
            Item::Struct(item) => item.ident == name,
            Item::Enum(item) => item.ident == name,
            Item::Trait(item) => item.ident == name,
            Item::Type(item) => item.ident == name,
            Item::Fn(item) => item.sig.ident == name,
            Item::Const(item) => item.ident == name,
            Item::Static(item) => item.ident == name,
            _ => false,
        })
    }
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, out: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, out);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = prefix.last().cloned().unwrap_or_default();
            out.push((last, prefix.clone()));
        }
        UseTree::Name(name) => {
            let mut full = prefix.clone();
            full.push(name.ident.to_string());
            out.push((name.ident.to_string(), full));
        }
        UseTree::Rename(rename) => {
            let mut full = prefix.clone();
            if rename.ident != "self" {
                full.push(rename.ident.to_string());
            }
            out.push((rename.rename.to_string(), full));
        }
        UseTree::Glob(_) => out.push(("*".to_owned(), prefix.clone())),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, prefix, out);
            }
        }
    }
}

/// Collects the paths that a file names outside test code.
#[derive(Default)]
struct Paths {
    paths: BTreeSet<Vec<String>>,
}

impl Paths {
    fn skips(attributes: &[Attribute]) -> bool {
        is_test_only(attributes) || attributes.iter().any(|a| a.path().is_ident("test"))
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_re_export = !matches!(item.vis, Visibility::Inherited);
        if Self::skips(&item.attrs) || is_re_export {
            return;
        }
        let mut names = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut names);
        for (name, mut path) in names {
            if name == "*" {
                path.push("*".to_owned());
            }
            self.paths.insert(path);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        // Paths in inline modules are relative to them; those that start at `crate` still count.
        if !Self::skips(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !Self::skips(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !Self::skips(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if segments.len() > 1 {
            self.paths.insert(segments);
        }
        visit::visit_path(self, path);
    }
}
