"""`python -m torch_regions`."""

from torch_regions.cli import main


raise SystemExit(main())
