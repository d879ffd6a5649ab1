// Before the page is drawn: light or dark, as the person chose or as the system is.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    root.dataset.bsTheme = localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
  };
  show();
  dark.addEventListener("change", show);
  addEventListener("storage", show);
})();
