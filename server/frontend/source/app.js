// What all pages do in the browser, beside htmx.

// Libraries clear elements by innerHTML = "", and workers are files of the hub. Nothing else passes.
if (window.trustedTypes) {
  trustedTypes.createPolicy("default", {
    createHTML: (text) => (text === "" ? text : null),
    createScriptURL: (url) => (url.startsWith("/-/assets/") ? url : null),
  });
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const toggle = target?.closest("[data-theme-toggle]");
  if (toggle) {
    const root = document.documentElement;
    const theme = root.dataset.bsTheme === "dark" ? "light" : "dark";
    root.dataset.bsTheme = theme;
    localStorage.setItem("theme", theme);
    document.dispatchEvent(new CustomEvent("theme"));
  }
  const copy = target?.closest("[data-copy]");
  if (copy instanceof HTMLElement) {
    navigator.clipboard.writeText(copy.dataset.copy ?? "").then(() => {
      copy.classList.add("copied");
      setTimeout(() => copy.classList.remove("copied"), 1500);
    });
  }
  // A menu closes when something else is clicked.
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target)) menu.removeAttribute("open");
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const menu of document.querySelectorAll("details.menu[open]")) menu.removeAttribute("open");
  }
});

// A form with data-confirm asks before it is sent.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form instanceof HTMLFormElement && form.dataset.confirm && !confirm(form.dataset.confirm)) {
    event.preventDefault();
  }
});
